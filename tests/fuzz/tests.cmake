# SPDX-License-Identifier: Apache-2.0
# Bounded runs of libFuzzer over what reads files from elsewhere. With Clang only; the files under test are compiled again,
# instrumented. A finding is kept as fuzz/crash-... in the build folder, and belongs into seeds/ once it is repaired.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang" OR SATURATE_SANITIZE)
  return()
endif()
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer,address)
check_cxx_source_compiles("#include <stddef.h>
  extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, size_t) { return 0; }" SATURATE_HAS_FUZZER)
unset(CMAKE_REQUIRED_FLAGS)
if(NOT SATURATE_HAS_FUZZER)
  message(STATUS "saturate: no libFuzzer here; the fuzz tests are left out")
  return()
endif()

# saturate_fuzz(name SOURCES files under test... LINK libraries... SEEDS folders... [OPTIONS libFuzzer's...])
function(saturate_fuzz name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;SEEDS;OPTIONS" ${ARGN})
  list(TRANSFORM arg_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/src/)
  add_executable(${name}_fuzz ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${name}_fuzz.cpp ${arg_SOURCES})
  target_include_directories(${name}_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name}_fuzz PRIVATE -fsanitize=fuzzer-no-link,address -O1 -g1)
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer,address)
  target_link_libraries(${name}_fuzz PRIVATE ${arg_LINK})
  saturate_warnings(${name}_fuzz)
  set(found ${CMAKE_CURRENT_BINARY_DIR}/fuzz/${name})
  file(MAKE_DIRECTORY ${found})
  add_test(NAME fuzz/${name} COMMAND ${name}_fuzz -runs=100000 -max_total_time=10 -timeout=20 -rss_limit_mb=2048
    -malloc_limit_mb=192 -artifact_prefix=${CMAKE_CURRENT_BINARY_DIR}/fuzz/ ${arg_OPTIONS} ${found} ${arg_SEEDS})
  set_tests_properties(fuzz/${name} PROPERTIES LABELS fuzz TIMEOUT 120)
endfunction()

# Without LibTorch, and so quick to build.
saturate_fuzz(tar_index
  SOURCES data/archive_reader.cpp data/atomic_file.cpp data/descriptor_cache.cpp data/member_name.cpp
    data/sample_at.cpp data/sampler.cpp data/shard_list.cpp data/tar_index.cpp data/tar_shards.cpp data/tar_stream.cpp
    log/log.cpp
  LINK LibArchive::LibArchive ZLIB::ZLIB spdlog::spdlog
  SEEDS ${CMAKE_CURRENT_LIST_DIR}/seeds/tar ${PROJECT_SOURCE_DIR}/tests/unit/data/tars
  OPTIONS -max_len=32768)

# The rest of it comes from the library. LibTorch holds on to memory until the end.
saturate_fuzz(idx
  SOURCES data/gzip_file.cpp data/idx_source.cpp
  LINK saturate::saturate ZLIB::ZLIB
  SEEDS ${CMAKE_CURRENT_LIST_DIR}/seeds/idx
  OPTIONS -max_len=4096 -detect_leaks=0)
