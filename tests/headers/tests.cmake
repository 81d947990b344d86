# SPDX-License-Identifier: Apache-2.0
# Public headers: cheap checks of all, and each one compiled alone (check.py has the details). A header costs about as
# much as LibTorch's part that it includes, so by default only changed ones are compiled, and all with
# SATURATE_FULL_CHECKS. By the system's compiler: the presets' Clang sees the headers anyway.
set(check ${SATURATE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/check.py)
set(compile --compiler ${SATURATE_SYSTEM_CXX} --flags ${SATURATE_FLAGS_FILE})
add_test(NAME headers/umbrella COMMAND ${check} umbrella)
add_test(NAME headers/spdx COMMAND ${check} spdx)
set_tests_properties(headers/umbrella headers/spdx PROPERTIES LABELS headers)
if(NOT SATURATE_FULL_CHECKS)
  add_test(NAME headers/changed COMMAND ${check} changed ${compile})
  set_tests_properties(headers/changed PROPERTIES LABELS headers RUN_SERIAL ON TIMEOUT 900)
  return()
endif()
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/include/*.hpp)
list(FILTER headers EXCLUDE REGEX "/detail/")
foreach(header IN LISTS headers)
  add_test(NAME headers/${header} COMMAND ${check} alone ${header} ${compile})
  set_tests_properties(headers/${header} PROPERTIES LABELS "headers;full" TIMEOUT 300)
endforeach()
