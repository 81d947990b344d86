# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch: the user's CMAKE_PREFIX_PATH or Torch_DIR wins, else the wheel that scripts/setup.sh put into .venv.
set(SATURATE_TORCH_TESTED 2.11)
set(SATURATE_TORCH_OLDEST 2.11)

include(SaturateFindTorch)
file(GLOB saturate_wheel "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake")
saturate_find_torch(${saturate_wheel})
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

saturate_torch_folders(SATURATE_TORCH_FOLDERS)
list(APPEND CMAKE_BUILD_RPATH ${SATURATE_TORCH_FOLDERS})
list(APPEND CMAKE_INSTALL_RPATH ${SATURATE_TORCH_FOLDERS})

set(SATURATE_HAS_CUDA OFF)
if(SATURATE_CUDA AND TORCH_CUDA_LIBRARIES AND CMAKE_CUDA_COMPILER)
  set(SATURATE_HAS_CUDA ON)
endif()
message(STATUS "saturate: LibTorch ${Torch_VERSION}; CUDA sources ${SATURATE_HAS_CUDA}")
