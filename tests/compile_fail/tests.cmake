# SPDX-License-Identifier: Apache-2.0
# One test per misuse in this folder, with each compiler that is here. The expected sentence is in the file: run.py.
file(GLOB misuses CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
find_program(SATURATE_GCC g++)
find_program(SATURATE_CLANG clang++)
set(compilers ${SATURATE_GCC} ${SATURATE_CLANG})
list(FILTER compilers EXCLUDE REGEX "NOTFOUND$")
if(NOT compilers)
  set(compilers ${CMAKE_CXX_COMPILER})
endif()
foreach(misuse IN LISTS misuses)
  get_filename_component(name ${misuse} NAME_WE)
  add_test(NAME compile_fail/${name}
    COMMAND ${SATURATE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/run.py ${misuse} --flags ${SATURATE_FLAGS_FILE} ${compilers})
  set_tests_properties(compile_fail/${name} PROPERTIES LABELS compile_fail TIMEOUT 300)
endforeach()
