# SPDX-License-Identifier: Apache-2.0
# What LibTorch's CMake files need to be told; used by saturate's own build and, installed, by saturateConfig.cmake.

# find_package(Torch), prepared: Torch_DIR and CMAKE_PREFIX_PATH win; ARGN are folders to search after them.
macro(saturate_find_torch)
  if(NOT Torch_DIR AND DEFINED ENV{Torch_DIR})
    set(Torch_DIR "$ENV{Torch_DIR}" CACHE PATH "")
  endif()
  # LibTorch looks for a GPU when no architecture is named, and fails where there is none.
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
  if(NOT Torch_DIR)
    list(APPEND CMAKE_PREFIX_PATH ${ARGN})  # appended: searched after the user's own
  endif()
  find_package(Torch QUIET)
endmacro()

# Programs run without environment variables: the folders of LibTorch's own libraries and of the CUDA libraries that
# came as packages beside it go into the RPATH.
function(saturate_torch_folders result)
  get_filename_component(torch_lib "${TORCH_LIBRARY}" DIRECTORY)
  get_filename_component(site "${torch_lib}/../.." ABSOLUTE)
  file(GLOB nvidia_libs "${site}/nvidia/*/lib")
  set(${result} "${torch_lib}" ${nvidia_libs} PARENT_SCOPE)
endfunction()
