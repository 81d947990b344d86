// SPDX-License-Identifier: Apache-2.0
// FLOPs against torch.utils.flop_counter's (tests/oracle/make_flops.py), bytes by hand.
#include "saturate/trace/op_flops.hpp"

#include <catch2/catch_test_macros.hpp>

#include <fstream>
#include <sstream>
#include <string>

namespace st = saturate;

namespace {

st::OpCost cost(const char* name, const char* shapes, const char* types, const char* values = "") {
  return st::op_cost(st::parse_op_call(name, shapes, types, values));
}

constexpr int64_t unknown = st::OpCost::unknown;

}  // namespace

TEST_CASE("op_flops: what Python's flop_counter counts") {
  std::ifstream file(SATURATE_SOURCE_DIR "/tests/oracle/flops.txt");
  int cases = 0, backward = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    std::istringstream fields(line);
    std::string name, flops, shapes, types, values;
    std::getline(fields, name, '\t');
    std::getline(fields, flops, '\t');
    std::getline(fields, shapes, '\t');
    std::getline(fields, types, '\t');
    std::getline(fields, values, '\t');
    INFO(line);
    REQUIRE(std::to_string(st::op_cost(st::parse_op_call(name, shapes, types, values)).flops) == flops);
    backward += name.ends_with("_backward");
  }
  CHECK(cases == 57);
  CHECK(backward > 20);
}

TEST_CASE("op_flops: a live call needs no text") {
  const st::OpCall call{
      .name = "aten::mm",
      .arguments = {{.sizes = {64, 128}, .element_bytes = 2}, {.sizes = {128, 32}, .element_bytes = 2}}};
  CHECK(st::op_cost(call).flops == 2 * 64 * 128 * 32);
  CHECK(st::op_cost(call).bytes == 2 * (64 * 128 + 128 * 32 + 64 * 32));
}

TEST_CASE("op_flops: composite operators, and those of one library") {
  const char* const three = R"(["float","float","float"])";
  CHECK(cost("aten::linear", "[[4,8,16],[32,16],[32]]", three).flops == 2 * 4 * 8 * 16 * 32);
  CHECK(cost("aten::linear", "[[4,8,16],[32,16],[32]]", three).bytes == 4 * (4 * 8 * 16 + 32 * 16 + 32 + 4 * 8 * 32));
  CHECK(cost("aten::matmul", "[[4,1,8,16],[3,16,5]]", three).flops == 2 * 4 * 3 * 8 * 16 * 5);
  CHECK(cost("aten::mv", "[[8,16],[16]]", three).flops == 2 * 8 * 16);
  const char* const types = R"(["float","float","float","ScalarList","ScalarList","ScalarList","Scalar"])";
  const char* const shapes = "[[2,3,8,8],[6,3,3,3],[6],[],[],[],[]]";
  // 8 + 2 - 2 = 8 places a side, 4 with a stride of 2.
  const int64_t whole = int64_t{2} * 2 * 8 * 8 * 6 * 3 * 3 * 3;
  CHECK(cost("aten::conv2d", shapes, types, R"(["","","","[1, 1]","[1, 1]","[1, 1]","1"])").flops == whole);
  CHECK(cost("aten::conv2d", shapes, types, R"(["","","","[2]","[1]","[1]","1"])").flops == whole / 4);
  CHECK(cost("aten::conv2d", shapes, types, R"(["","","","[1, 1]","same","[1, 1]","1"])").flops == whole);
  CHECK(cost("aten::conv2d", shapes, types, R"(["","","","[1, 1]","valid","[1, 1]","1"])").flops == whole / 64 * 36);
  CHECK(cost("aten::mkldnn_convolution", shapes, types, R"(["","","","[1, 1]","[2, 2]","[1, 1]","1"])").flops ==
        whole / 4);
  CHECK(cost("aten::convolution", "[[3,8,8],[6,3,3,3],[]]", types,
             R"(["","","","[1, 1]","[1, 1]","[1, 1]","False","[0, 0]","1"])")
            .flops == whole / 2);  // one picture without a batch
  // A grouped convolution's weight: 2 * places * elements of the weight, once for each gradient.
  CHECK(cost("aten::convolution_backward", "[[2,4,8,8],[2,4,8,8],[4,2,3,3],[],[],[],[],[],[],[],[]]", three,
             R"(["","","","[4]","[1, 1]","[1, 1]","[1, 1]","False","[0, 0]","2","[True, True, True]"])")
            .flops == 2 * 2 * (2 * 64 * 4 * 2 * 9));
  // 8 query heads, 2 of keys: each query meets each key once.
  CHECK(cost("aten::scaled_dot_product_attention", "[[1,8,10,16],[1,2,20,16],[1,2,20,16]]", three).flops ==
        2 * 8 * 10 * 20 * (16 + 16));
}

TEST_CASE("op_flops: what the trace does not tell is unknown, not nothing") {
  const char* const two = R"(["float","float"])";
  CHECK(cost("aten::mm", "", "").flops == unknown);
  CHECK(cost("aten::mm", "[[2,3],[4,5]]", two).flops == unknown);
  CHECK(cost("aten::mm", "[[2,3],[3,5]]", "").flops == 2 * 2 * 3 * 5);
  CHECK(cost("aten::mm", "[[2,3],[3,5]]", "").bytes == unknown);
  CHECK(cost("aten::conv2d", "[[2,3,8,8],[6,3,3,3]]", two).flops == unknown);
  CHECK(cost("aten::convolution_backward", "[[2,4,8,8],[2,4,8,8],[4,4,3,3]]", two).flops == unknown);
  CHECK(cost("aten::mul", "", "").bytes == unknown);
  CHECK(cost("aten::_foreach_add_", "[[[2,3],[3]],[]]", R"(["TensorList","Scalar"])").bytes == unknown);
  CHECK(cost("aten::cat", "[[[2,3],[2,3]],[]]", R"(["TensorList","Scalar"])").bytes == unknown);
  CHECK(cost("mine::fused", "[[2,3]]", two).flops == 0);
  CHECK(cost("mine::fused", "[[2,3]]", two).bytes == unknown);
}

TEST_CASE("op_flops: bytes of what computes no product") {
  const char* const two = R"(["float","float","Scalar"])";
  const char* const one = R"(["float","Scalar"])";
  CHECK(cost("aten::add", "[[8,16],[16],[]]", two, R"(["","","1"])").bytes == 4 * (128 + 16 + 128));
  CHECK(cost("aten::add", "[[8,1],[1,16]]", two).bytes == 4 * (8 + 16 + 128));
  CHECK(cost("aten::add_", "[[8,16],[16],[]]", two).bytes == 4 * (128 + 16 + 128));
  CHECK(cost("aten::relu", "[[8,16]]", R"(["c10::BFloat16"])").bytes == 2 * 2 * 128);
  CHECK(cost("aten::gt", "[[8,16],[]]", R"(["float","Scalar"])").bytes == 4 * 128 + 128);
  CHECK(cost("aten::copy_", "[[8,16],[8,16],[]]", R"(["c10::BFloat16","float","Scalar"])").bytes == 128 * (2 + 4));
  CHECK(cost("aten::zero_", "[[8,16]]", one).bytes == 4 * 128);
  CHECK(cost("aten::view", "[[8,16],[]]", one).bytes == 0);
  CHECK(cost("aten::sum", "[[8,16],[]]", one).bytes == 4 * 128 + 4);
  CHECK(cost("aten::sum", "[[8,16],[],[]]", R"(["float","ScalarList","Scalar"])", R"(["","[-1]","False"])").bytes ==
        4 * 128 + 4 * 8);
  CHECK(cost("aten::embedding", "[[1000,64],[4,8]]", R"(["float","long int"])").bytes == 32 * 8 + 2 * 32 * 64 * 4);
  CHECK(
      cost("aten::native_layer_norm", "[[8,16],[],[16],[16],[]]", R"(["float","ScalarList","float","float","Scalar"])")
          .bytes == 4 * (128 + 32 + 128));
}
