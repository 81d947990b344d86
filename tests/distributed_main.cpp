// SPDX-License-Identifier: Apache-2.0
// Catch2's main, and a spawned rank's.
#include "saturate/distributed/spawn.hpp"

#include <catch2/catch_session.hpp>

int main(int argc, char** argv) {
  if (const auto code = saturate::distributed::spawned_main(argc, argv)) return *code;
  return Catch::Session().run(argc, argv);
}
