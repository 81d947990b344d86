// SPDX-License-Identifier: Apache-2.0
#include "saturate/data/source.hpp"

#include "saturate/data/tensor_source.hpp"
#include "saturate/error.hpp"
#include "unit/data/sources.hpp"

#include <torch/torch.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

using namespace saturate::data;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

using Layout = std::array<FieldLayout, 2>;
using Place = std::array<std::byte*, 2>;

// Each misses the contract by one thing.
struct WithoutFields {
  int64_t size() const;
  Layout layout() const;
  void read(int64_t, Place) const;
};
struct WithoutSize {
  static constexpr std::size_t fields = 2;
  Layout layout() const;
  void read(int64_t, Place) const;
};
struct LayoutOfAnotherLength {
  static constexpr std::size_t fields = 2;
  int64_t size() const;
  std::array<FieldLayout, 3> layout() const;
  void read(int64_t, Place) const;
};
struct ReadThatChangesTheSource {
  static constexpr std::size_t fields = 2;
  int64_t size() const;
  Layout layout() const;
  void read(int64_t, Place);
};
struct FieldsKnownAtRunTime {
  std::size_t fields = 2;
  int64_t size() const;
  Layout layout() const;
  void read(int64_t, Place) const;
};

static_assert(!Source<WithoutFields>);
static_assert(!Source<WithoutSize>);
static_assert(!Source<LayoutOfAnotherLength>);
static_assert(!Source<ReadThatChangesTheSource>);
static_assert(!Source<FieldsKnownAtRunTime>);
static_assert(Source<saturate::test::Numbers> && !GatheringSource<saturate::test::Numbers>);

template <class S>
std::vector<at::Tensor> gathered(const S& source, std::vector<int64_t> indices) {
  std::vector<at::Tensor> fields;
  std::array<std::byte*, S::fields> out;
  const auto layout = source.layout();
  for (std::size_t f = 0; f < S::fields; ++f) {
    std::vector<int64_t> sizes = layout[f].shape;
    sizes.insert(sizes.begin(), static_cast<int64_t>(indices.size()));
    fields.push_back(at::empty(sizes, layout[f].dtype));
    out[f] = static_cast<std::byte*>(fields.back().mutable_data_ptr());
  }
  source.gather(indices, out);
  return fields;
}

}  // namespace

TEST_CASE("FieldLayout counts elements and bytes", "[data]") {
  REQUIRE(FieldLayout{at::kFloat, {1, 28, 28}}.bytes() == 3136);
  REQUIRE(FieldLayout{at::kLong, {}}.bytes() == 8);
  REQUIRE(FieldLayout{at::kHalf, {3, 0}}.bytes() == 0);
}

TEST_CASE("TensorSource gathers the rows that index_select gives, for every kind of row", "[data]") {
  const auto ids = torch::tensor({5, 0, 0, 9, 3}, at::kLong);
  const std::vector<int64_t> indices(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + 5);
  const at::Tensor all[] = {
      torch::rand({10, 1, 28, 28}),                                   // long rows
      torch::randint(0, 9, {10}, at::kLong),                          // 8 bytes
      torch::rand({10}),                                              // 4 bytes
      torch::randint(0, 2, {10}, at::kBool),                          // 1 byte
      torch::rand({10, 3}, at::kDouble).to(at::kHalf),                // 6 bytes
      torch::rand({20, 5}).slice(0, 0, 20, 2),                        // not contiguous
      torch::rand({10, 3, 4, 4}).to(at::MemoryFormat::ChannelsLast),  // not contiguous either
      torch::rand({10, 2}).requires_grad_(),                          // no graph comes along
      torch::rand({10, 0}),                                           // no bytes
  };
  for (const auto& tensor : all) {
    const TensorSource source(tensor, all[1]);
    const auto fields = gathered(source, indices);
    REQUIRE(fields[0].equal(tensor.index_select(0, ids)));
    REQUIRE(fields[1].equal(all[1].index_select(0, ids)));
    REQUIRE(!fields[0].requires_grad());
  }
}

TEST_CASE("TensorSource shares contiguous tensors and counts its fields", "[data]") {
  auto x = torch::zeros({4, 2}), mask = torch::ones({4, 2}), y = torch::arange(4);
  const TensorSource source(x, mask, y);
  STATIC_REQUIRE(decltype(source)::fields == 3);
  x.fill_(7);
  REQUIRE(gathered(source, {3})[0].equal(torch::full({1, 2}, 7.0f)));
  const TensorSource copy(source);
  STATIC_REQUIRE(std::is_same_v<decltype(copy), decltype(source)>);
}

TEST_CASE("TensorSource refuses tensors that do not belong together, naming the one", "[data]") {
  const auto x = torch::zeros({4, 2});
  const auto refused = [&](const at::Tensor& y, const char* words) {
    REQUIRE_THROWS_MATCHES(TensorSource(x, y), saturate::DataError,
                           MessageMatches(ContainsSubstring("tensor 1") && ContainsSubstring(words)));
  };
  refused(torch::arange(5), "has 5 rows, tensor 0 has 4");
  refused(torch::tensor(1), "no dimension");
  refused(at::Tensor(), "undefined");
  refused(torch::zeros({0}), "no rows");
  refused(torch::eye(4).to_sparse(), "dense");
  refused(torch::zeros({4}, at::kMeta), "meta");
  REQUIRE_THROWS_AS(gathered(TensorSource(x, x), {4}), saturate::DataError);
  REQUIRE_THROWS_AS(gathered(TensorSource(x, x), {-1}), saturate::DataError);
}
