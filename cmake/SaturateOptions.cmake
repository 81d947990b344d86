# SPDX-License-Identifier: Apache-2.0
# Options. Tests, programs, examples and install rules are for saturate itself, so they are off inside another project.
option(SATURATE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(SATURATE_BUILD_PROGRAMS "Build the audit and the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(SATURATE_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(SATURATE_INSTALL "Make install rules" ${PROJECT_IS_TOP_LEVEL})
option(SATURATE_WERROR "Warnings are errors" OFF)
option(SATURATE_CUDA "Compile the CUDA sources when nvcc is found" ON)
option(SATURATE_FULL_CHECKS "Register the tests labelled full: every header alone, whole matrices" OFF)
option(SATURATE_PCH "Precompile <torch/torch.h> once for all targets" ${PROJECT_IS_TOP_LEVEL})
option(SATURATE_UNITY "Compile the library's sources by the folder: a fifth of the time, no check of each one's includes" ON)
set(SATURATE_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= spells them (address,undefined or thread)")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)  # a project that takes us in by add_subdirectory links LibTorch through us
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(SATURATE_CCACHE ccache)
  if(SATURATE_CCACHE)
    # The sloppiness lets ccache take part beside a precompiled header; the cache stays inside the repository's folder.
    set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_DEPEND=1 CCACHE_DIR=${PROJECT_SOURCE_DIR}/.cache/ccache CCACHE_MAXSIZE=2G
      ${SATURATE_CCACHE})
  endif()
endif()
