# SPDX-License-Identifier: Apache-2.0
# The consumer, three ways. Serial: each one builds with as many jobs as there are cores.
find_program(SATURATE_SYSTEM_CXX NAMES g++ c++ REQUIRED)
foreach(way build_tree install_tree subdirectory)
  if(way STREQUAL "subdirectory")
    set(compiler ${SATURATE_SYSTEM_CXX})
  else()
    set(compiler ${CMAKE_CXX_COMPILER})
  endif()
  add_test(NAME consumer/${way}
    COMMAND ${CMAKE_COMMAND} -DWAY=${way} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
      -DCOMPILER=${compiler} -DTORCH_DIR=${Torch_DIR} "-DLAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}"
      -P ${CMAKE_CURRENT_LIST_DIR}/run.cmake)
  set_tests_properties(consumer/${way} PROPERTIES LABELS consumer RUN_SERIAL ON TIMEOUT 1200)
endforeach()
