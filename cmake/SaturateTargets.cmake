# SPDX-License-Identifier: Apache-2.0
# How this project makes its targets. LibTorch costs tens of seconds a translation unit, so all targets share one
# precompiled header, and that needs one set of flags for all of them.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_COMPILE_OPTIONS_PIE ${CMAKE_CXX_COMPILE_OPTIONS_PIC})  # programs too: Clang refuses the header otherwise

# LibTorch's packages are release builds, and without NDEBUG its headers declare members that are not there
# (RecordFunction::inputs_valid_): what is built here has it in every build type.
add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:NDEBUG>)

function(saturate_warnings target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>)
  if(SATURATE_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()

if(SATURATE_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SATURATE_SANITIZE}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${SATURATE_SANITIZE})
endif()

if(SATURATE_PCH)
  add_library(saturate_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
  target_link_libraries(saturate_pch PUBLIC torch)
  target_compile_features(saturate_pch PUBLIC cxx_std_20)
  target_precompile_headers(saturate_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch.hpp)
  saturate_warnings(saturate_pch)
endif()

# Warnings and the shared precompiled header.
function(saturate_settings target)
  saturate_warnings(${target})
  if(SATURATE_PCH)
    target_precompile_headers(${target} REUSE_FROM saturate_pch)
  endif()
endfunction()

# saturate_program(name sources... [LINK libraries...])
function(saturate_program name)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE saturate::saturate ${arg_LINK})
  saturate_settings(${name})
endfunction()
