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
  # Sources of a folder are compiled as one: their unnamed namespaces are not the main file's, as GCC fears.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  if(SATURATE_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()

if(SATURATE_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SATURATE_SANITIZE}>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${SATURATE_SANITIZE})
endif()

# A precompiled header holds for one set of flags: one for what is measured and shipped, one for tests and examples,
# which optimizing would cost two thirds of their build, for nothing that anybody times.
function(saturate_precompile name)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
  target_link_libraries(${name} PUBLIC torch)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_options(${name} PRIVATE ${ARGN})
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch.hpp)
  saturate_warnings(${name})
endfunction()
if(SATURATE_PCH)
  saturate_precompile(saturate_pch)
  if(SATURATE_BUILD_TESTS OR SATURATE_BUILD_EXAMPLES)
    saturate_precompile(saturate_pch_unoptimized -O0)
  endif()
endif()

# Warnings and a shared precompiled header. saturate_settings(target [UNOPTIMIZED])
function(saturate_settings target)
  cmake_parse_arguments(arg "UNOPTIMIZED" "" "" ${ARGN})
  saturate_warnings(${target})
  set(pch saturate_pch)
  if(arg_UNOPTIMIZED)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
    set(pch saturate_pch_unoptimized)
  endif()
  if(SATURATE_PCH)
    target_precompile_headers(${target} REUSE_FROM ${pch})
  endif()
endfunction()

# saturate_program(name sources... [LINK libraries...] [UNOPTIMIZED])
function(saturate_program name)
  cmake_parse_arguments(arg "UNOPTIMIZED" "" "LINK" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE saturate::saturate ${arg_LINK})
  if(arg_UNOPTIMIZED)
    set(how UNOPTIMIZED)
  endif()
  saturate_settings(${name} ${how})
endfunction()
