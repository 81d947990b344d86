# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch: the user's CMAKE_PREFIX_PATH or Torch_DIR wins, else the wheel that scripts/setup.sh put into .venv.
set(SATURATE_TORCH_TESTED 2.11)
set(SATURATE_TORCH_OLDEST 2.11)

if(NOT Torch_DIR AND DEFINED ENV{Torch_DIR})
  set(Torch_DIR "$ENV{Torch_DIR}" CACHE PATH "")
endif()
file(GLOB saturate_wheel "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake")
if(saturate_wheel AND NOT Torch_DIR)
  list(APPEND CMAKE_PREFIX_PATH "${saturate_wheel}")  # appended: searched after the user's own
endif()

# LibTorch's CMake files look for a GPU when no architecture is named, and fail where there is none.
if(NOT TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
  set(TORCH_CUDA_ARCH_LIST "8.0;9.0")
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(saturate_nvcc nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
  if(saturate_nvcc)
    set(ENV{CUDACXX} "${saturate_nvcc}")
  endif()
endif()
if(POLICY CMP0146)
  cmake_policy(SET CMP0146 OLD)  # FindCUDA, which LibTorch's files still call
  set(CMAKE_POLICY_DEFAULT_CMP0146 OLD)
endif()

find_package(Torch QUIET)
if(NOT Torch_FOUND)
  message(FATAL_ERROR "LibTorch was not found. scripts/setup.sh brings the tested release; or point Torch_DIR at the "
    "folder of your TorchConfig.cmake.")
endif()
if(Torch_VERSION VERSION_LESS SATURATE_TORCH_OLDEST)
  message(FATAL_ERROR "LibTorch ${Torch_VERSION} is older than ${SATURATE_TORCH_OLDEST}, the oldest release that "
    "saturate supports. scripts/setup.sh brings the tested one.")
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" saturate_torch_minor "${Torch_VERSION}")
if(NOT saturate_torch_minor VERSION_EQUAL SATURATE_TORCH_TESTED)
  message(WARNING "LibTorch ${Torch_VERSION} is newer than ${SATURATE_TORCH_TESTED}, the release that saturate is "
    "tested with: it may work; what depends on one release sits behind src/torch_seam.")
endif()
get_filename_component(SATURATE_TORCH_LIB "${TORCH_LIBRARY}" DIRECTORY)

# Programs run without environment variables: the folders of LibTorch's own libraries and of the CUDA libraries that
# came as packages beside it go into the RPATH.
get_filename_component(saturate_site "${SATURATE_TORCH_LIB}/../.." ABSOLUTE)
file(GLOB saturate_nvidia_libs "${saturate_site}/nvidia/*/lib")
list(APPEND CMAKE_BUILD_RPATH "${SATURATE_TORCH_LIB}" ${saturate_nvidia_libs})
list(APPEND CMAKE_INSTALL_RPATH "${SATURATE_TORCH_LIB}" ${saturate_nvidia_libs})

set(SATURATE_HAS_CUDA OFF)
if(SATURATE_CUDA AND TORCH_CUDA_LIBRARIES AND CMAKE_CUDA_COMPILER)
  set(SATURATE_HAS_CUDA ON)
endif()
message(STATUS "saturate: LibTorch ${Torch_VERSION}; CUDA sources ${SATURATE_HAS_CUDA}")
