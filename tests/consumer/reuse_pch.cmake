# SPDX-License-Identifier: Apache-2.0
# Run by project(saturate) inside the consumer. The whole library again costs minutes; compiled with the flags and the
# precompiled header of the build under test, ccache already has every object.
function(reuse_pch)
  get_target_property(folder saturate SOURCE_DIR)
  get_target_property(sources saturate SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM sources PREPEND "${folder}/")
  set_source_files_properties(${sources} TARGET_DIRECTORY saturate PROPERTIES COMPILE_OPTIONS
    "-Winvalid-pch;-Xclang;-include-pch;-Xclang;${REUSE_PCH}.pch;-Xclang;-include;-Xclang;${REUSE_PCH}")
endfunction()
cmake_language(DEFER CALL reuse_pch)
