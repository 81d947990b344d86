# SPDX-License-Identifier: Apache-2.0
# The documentation: links, anchors, named files, and code that comes from the examples (check.py has the details).
foreach(check IN ITEMS links snippets self)
  add_test(NAME docs/${check} COMMAND ${SATURATE_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/check.py ${check})
  set_tests_properties(docs/${check} PROPERTIES LABELS docs TIMEOUT 60)
endforeach()
