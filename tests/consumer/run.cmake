# SPDX-License-Identifier: Apache-2.0
# cmake -DWAY=build_tree|install_tree|subdirectory|subdirectory_alone ... -P run.cmake: configures, builds and runs the consumer.
cmake_policy(VERSION 3.25)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed)
  if(failed)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "consumer, ${WAY}: this failed: ${line}")
  endif()
endfunction()

set(folder ${BUILD}/consumer/${WAY})
set(options -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER} -DTorch_DIR=${TORCH_DIR})
set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER}")  # a list: as an argument it would fall apart
if(WAY STREQUAL "build_tree")
  list(APPEND options -Dsaturate_DIR=${BUILD})
elseif(WAY STREQUAL "install_tree")
  set(prefix ${BUILD}/consumer/prefix)
  file(REMOVE_RECURSE ${prefix} ${folder})  # nothing of an earlier install may stand in for a missing file
  step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
  list(APPEND options -DCMAKE_PREFIX_PATH=${prefix})
else()
  list(APPEND options -DCONSUME=subdirectory -DSATURATE_SOURCE=${SOURCE} -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_CXX_FLAGS_RELEASE=${FLAGS}" -DSATURATE_WERROR=${WERROR})
  if(REUSE_PCH)
    list(APPEND options -DREUSE_PCH=${REUSE_PCH}
      -DCMAKE_PROJECT_saturate_INCLUDE=${SOURCE}/tests/consumer/reuse_pch.cmake)
  endif()
endif()

step(${CMAKE_COMMAND} -S ${SOURCE}/tests/consumer -B ${folder} ${options})
step(${CMAKE_COMMAND} --build ${folder})
# No environment: the program must find LibTorch by its RPATH.
step(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${folder}/consumer)
