# SPDX-License-Identifier: Apache-2.0
# One test per misuse in this folder, with each compiler that is here. The expected sentence is in the file: run.py.
# Those that include much of LibTorch: by Clang with the tests' precompiled header, and by GCC, which has none, under full.
file(GLOB misuses CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
set(heavy model_by_value optimizer_copied optimizer_that_needs_a_closure)
find_program(SATURATE_GCC g++)
find_program(SATURATE_CLANG clang++)
set(with_pch)
if(SATURATE_PCH AND CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND NOT SATURATE_SANITIZE)
  set(with_pch --pch ${PROJECT_BINARY_DIR}/CMakeFiles/saturate_pch_unoptimized.dir/cmake_pch.hxx.pch
    ${CMAKE_CXX_COMPILER})
endif()
foreach(misuse IN LISTS misuses)
  get_filename_component(name ${misuse} NAME_WE)
  set(compilers ${SATURATE_GCC} ${SATURATE_CLANG})
  list(FILTER compilers EXCLUDE REGEX "NOTFOUND$")
  if(name IN_LIST heavy AND with_pch)
    set(compilers ${with_pch})
    if(SATURATE_FULL_CHECKS AND SATURATE_GCC)
      list(APPEND compilers ${SATURATE_GCC})
    endif()
  elseif(NOT compilers)
    set(compilers ${CMAKE_CXX_COMPILER})
  endif()
  add_test(NAME compile_fail/${name}
    COMMAND ${SATURATE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/run.py ${misuse} --flags ${SATURATE_FLAGS_FILE} ${compilers})
  set_tests_properties(compile_fail/${name} PROPERTIES LABELS compile_fail TIMEOUT 300)
endforeach()
