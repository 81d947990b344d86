# SPDX-License-Identifier: Apache-2.0
# The consumer, three ways, with the system's compiler where the library is already there.

# consumer_test(way compiler definitions...)
function(consumer_test way compiler)
  list(TRANSFORM ARGN PREPEND "-D")
  add_test(NAME consumer/${way}
    COMMAND ${CMAKE_COMMAND} -DWAY=${way} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
      -DCOMPILER=${compiler} -DTORCH_DIR=${Torch_DIR} "-DLAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" ${ARGN}
      -P ${PROJECT_SOURCE_DIR}/tests/consumer/run.cmake)
  set_tests_properties(consumer/${way} PROPERTIES LABELS consumer TIMEOUT 1800)
  if(way MATCHES subdirectory)  # builds with as many jobs as there are cores
    set_tests_properties(consumer/${way} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

consumer_test(build_tree ${SATURATE_SYSTEM_CXX})
consumer_test(install_tree ${SATURATE_SYSTEM_CXX})
if(SATURATE_PCH AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(pch REUSE_PCH=${PROJECT_BINARY_DIR}/CMakeFiles/saturate_pch.dir/cmake_pch.hxx)
endif()
consumer_test(subdirectory ${CMAKE_CXX_COMPILER} "FLAGS=${CMAKE_CXX_FLAGS_RELEASE}" WERROR=${SATURATE_WERROR} ${pch})
if(SATURATE_FULL_CHECKS)
  # The system's compiler, without a precompiled header: every source of the library includes what it uses.
  consumer_test(subdirectory_alone ${SATURATE_SYSTEM_CXX} FLAGS=-O0 WERROR=ON)
  set_property(TEST consumer/subdirectory_alone APPEND PROPERTY LABELS full)
endif()
