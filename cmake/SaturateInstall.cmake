# SPDX-License-Identifier: Apache-2.0
# find_package(saturate) for other projects: from an install tree, or from this build tree with saturate_DIR.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(saturate_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/saturate)
get_filename_component(saturate_torch_prefix "${Torch_DIR}" DIRECTORY)

install(TARGETS saturate EXPORT saturateTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/saturate DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
install(EXPORT saturateTargets NAMESPACE saturate:: DESTINATION ${saturate_package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE TYPE DOC)
export(EXPORT saturateTargets NAMESPACE saturate:: FILE ${PROJECT_BINARY_DIR}/saturateTargets.cmake)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/saturateConfig.cmake.in
  ${PROJECT_BINARY_DIR}/saturateConfig.cmake INSTALL_DESTINATION ${saturate_package_dir})
# Before 1.0 a minor release may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/saturateConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(${PROJECT_SOURCE_DIR}/cmake/SaturateFindTorch.cmake ${PROJECT_BINARY_DIR}/SaturateFindTorch.cmake COPYONLY)
install(FILES
  ${PROJECT_BINARY_DIR}/saturateConfig.cmake
  ${PROJECT_BINARY_DIR}/saturateConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/SaturateFindTorch.cmake
  DESTINATION ${saturate_package_dir})
