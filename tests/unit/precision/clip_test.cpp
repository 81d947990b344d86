// SPDX-License-Identifier: Apache-2.0
#include "oracle.hpp"
#include "saturate/clip/clip_grad_norm.hpp"
#include "saturate/clip/skip_spikes.hpp"
#include "saturate/error.hpp"
#include "saturate/observe/op_counter.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/trainer.hpp"
#include "support.hpp"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cmath>
#include <limits>

namespace st = saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class Clip>
st::ClipResult clipped(const Clip& clip, std::vector<at::Tensor>& gradients,
                       const std::vector<at::Tensor>& parameters = {}) {
  std::vector<std::size_t> groups;
  for (std::size_t i = 0; i < gradients.size(); ++i) groups.push_back(i);
  const st::ClipContext context{parameters, groups, torch::ones({}), st::Count(1.0)};
  if constexpr (requires { clip.clip(gradients, context); }) {
    return clip.clip(gradients, context);
  } else {
    return clip.clip(gradients);
  }
}

// The run of make_precision.py.
template <class Clip>
double distance(const char* name, const Clip& clip) {
  const auto expected = support::oracle("precision.txt").at(name);
  std::size_t next = 0;
  double worst = 0;
  for (int step = 0; step < 50; ++step) {
    std::vector<at::Tensor> gradients{torch::empty({4}, at::kDouble), torch::empty({2, 3})};
    for (int p = 0; p < 2; ++p) {
      at::Tensor flat = gradients[p].view({-1});
      for (int64_t i = 0; i < flat.numel(); ++i) {
        flat[i] = std::cos(static_cast<double>(i + 1) * (step + 1) + p) * (1 + step);
      }
    }
    clipped(clip, gradients);
    for (const at::Tensor& gradient : gradients) {
      const at::Tensor flat = gradient.to(at::kDouble).view({-1}).contiguous();
      for (int64_t i = 0; i < flat.numel(); ++i) {
        const double want = expected.at(next++);
        worst = std::max(worst, std::abs(flat.const_data_ptr<double>()[i] - want) / std::max(1e-3, std::abs(want)));
      }
    }
  }
  REQUIRE(next == expected.size());
  return worst;
}

support::Batch regression(int64_t seed, double level) {
  const auto batch = support::classes(16, seed);
  return support::Batch{batch.first, torch::sin(batch.first.narrow(1, 0, 4)) + level};
}

}  // namespace

TEST_CASE("clipping gives Python's gradients over 50 steps, float64 and float32 together") {
  CHECK(distance("clip_norm_2", st::ClipGradNorm{3.0}) < 1e-6);
  CHECK(distance("clip_norm_inf", st::ClipGradNorm{3.0, infinity}) < 1e-6);
  CHECK(distance("clip_norm_3", st::ClipGradNorm{3.0, 3.0}) < 1e-6);
  CHECK(distance("clip_norm_1", st::ClipGradNorm{3.0, 1.0}) < 1e-6);
  CHECK(distance("clip_value", st::ClipGradValue{2.5}) < 1e-6);
  CHECK(distance("clip_per_group", st::ClipGradNormPerGroup{{2.0, 5.0}}) < 1e-6);
}

TEST_CASE("the 2-norm on the CPU is LibTorch's in float64, over sizes and layouts, the same bits each time") {
  torch::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    std::vector<at::Tensor> gradients;
    for (const int64_t size : {1, 7, 8, 9, 8191, 8193, 100'003}) gradients.push_back(torch::randn({size}, dtype));
    gradients.push_back(torch::randn({30, 70}, dtype).t());  // dense, not contiguous
    std::vector<at::Tensor> gaps = gradients;
    gaps.push_back(torch::randn({50, 60}, dtype).narrow(1, 10, 20));  // not dense: LibTorch's kernel
    for (std::vector<at::Tensor>* list : {&gradients, &gaps}) {
      double squares = 0;
      for (const at::Tensor& gradient : *list) squares += gradient.to(at::kDouble).square().sum().item<double>();
      const double norm = st::grad_norm(*list).item<double>();
      CHECK(std::abs(norm - std::sqrt(squares)) < 1e-13 * norm);
      CHECK(st::grad_norm(*list).item<double>() == norm);
    }
    for (const double bad : {static_cast<double>(NAN), infinity}) {
      gradients[4][8000] = bad;
      const double norm = st::grad_norm(gradients).item<double>();
      CHECK((std::isnan(bad) ? std::isnan(norm) : norm == infinity));
    }
  }
}

TEST_CASE("norms on the CPU are LibTorch's in float64, over powers, dtypes and layouts") {
  torch::manual_seed(3);
  const auto layouts = [](const at::Tensor& x) {
    return std::vector<at::Tensor>{
        x,       x.t(),           x.slice(1, 3, 40, 2), x.slice(0, 0, 1).expand({5, x.size(1)}), x.slice(0, 1, 2),
        x[0][0], x.slice(0, 0, 0)};
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const at::Tensor& tensor : layouts(torch::randn({130, 141}).to(dtype))) {
      for (const double p : {0.5, 1.0, 2.0, 2.5, 4.0}) {
        INFO("dtype " << dtype << ", sizes " << tensor.sizes() << ", strides " << tensor.strides() << ", norm " << p);
        const double expected =
            tensor.numel() == 0 ? 0 : at::linalg_vector_norm(tensor.to(at::kDouble), p).item<double>();
        CHECK(st::grad_norm({tensor}, p).item<double>() == Catch::Approx(expected).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("adaptive clipping is LibTorch's arithmetic, over dtypes and layouts") {
  torch::manual_seed(4);
  const auto by_kernels = [](const at::Tensor& grad, const at::Tensor& parameter, double clip_factor, double eps) {
    const auto unit = [](const at::Tensor& x) {
      const at::Tensor wide = x.to(at::kDouble);
      return x.dim() <= 1 ? at::linalg_vector_norm(wide)
                          : at::linalg_vector_norm(wide.flatten(1), 2, at::IntArrayRef{1});
    };
    const at::Tensor factor =
        (unit(parameter).clamp_min(eps) * clip_factor / unit(grad).clamp_min(1e-6)).clamp_max(1).to(grad.scalar_type());
    std::vector<int64_t> shape(grad.dim(), 1);
    if (grad.dim() > 1) shape[0] = grad.size(0);
    return grad * factor.view(shape);
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor image = torch::randn({6, 5, 4, 3}).to(dtype);
    for (const at::Tensor& grad :
         {torch::randn({70, 600}).to(dtype), torch::randn({40, 30}).to(dtype).t(), image,
          image.contiguous(at::MemoryFormat::ChannelsLast), torch::randn({9, 20}).to(dtype).slice(1, 2, 19, 3),
          torch::randn({50}).to(dtype), torch::randn({}).to(dtype)}) {
      INFO("dtype " << dtype << ", sizes " << grad.sizes() << ", strides " << grad.strides());
      // Some units above their limit, some below.
      const at::Tensor parameter = torch::randn(grad.sizes());
      if (grad.dim() > 0) parameter.slice(0, 0, (grad.size(0) + 1) / 2).mul_(0.1);
      const at::Tensor expected = by_kernels(grad, parameter, 1.5, 1e-3);
      const double norm = at::linalg_vector_norm(grad.to(at::kDouble)).item<double>();
      std::vector<at::Tensor> gradients = {grad.clone()};
      if (!grad.is_non_overlapping_and_dense()) gradients[0] = grad;
      const st::ClipResult result =
          clipped(st::AdaptiveGradClip{.clip_factor = 1.5, .eps = 1e-3}, gradients, {parameter});
      CHECK(result.norm.item<double>() == Catch::Approx(norm).epsilon(1e-12));
      // A norm's last bit may turn the factor's.
      const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-6 : 1e-2;
      CHECK(at::allclose(gradients[0], expected, tolerance, 0));
    }
  }
}

TEST_CASE("adaptive clipping counts as a change in place, and refuses elements that share memory") {
  const at::Tensor parameter = torch::full({2, 3}, 1e-3);
  std::vector<at::Tensor> gradients = {torch::ones({2, 3})};
  const auto version = gradients[0]._version();
  clipped(st::AdaptiveGradClip{}, gradients, {parameter});
  CHECK(gradients[0]._version() > version);
  CHECK(gradients[0].max().item<float>() < 1);
  gradients[0] = torch::ones({1, 3}).expand({2, 3});
  CHECK_THROWS_AS(clipped(st::AdaptiveGradClip{}, gradients, {parameter}), c10::Error);
  CHECK(gradients[0].equal(torch::ones({2, 3})));
}

TEST_CASE("norms do not overflow whatever the gradients' dtype, and mixed dtypes have one norm") {
  std::vector<at::Tensor> half{torch::full({4}, 40000.0, at::kHalf)};
  CHECK(st::ClipGradNorm{1.0}.clip(half).norm.item<double>() == 80000.0);
  CHECK(half[0][0].item<double>() == 0.5);
  std::vector<at::Tensor> large{torch::full({4}, 1e20)};
  const st::ClipResult result = st::ClipGradNorm{1.0}.clip(large);
  CHECK(result.refused.item<float>() == 0);
  CHECK(std::abs(large[0][0].item<double>() - 0.5) < 1e-6);
  std::vector<at::Tensor> mixed{torch::tensor({12.0F, 0.0F}), torch::tensor({3.0F, 4.0F}).to(at::kBFloat16)};
  CHECK(std::abs(st::ClipGradNorm{6.5}.clip(mixed).norm.item<double>() - 13) < 1e-9);
  CHECK(std::abs(mixed[0][0].item<double>() - 6) < 1e-5);
  CHECK(mixed[1][0].item<double>() == 1.5);
  CHECK(mixed[1][1].item<double>() == 2.0);
  std::vector<at::Tensor> none, empty{torch::empty({0})};
  CHECK(st::ClipGradNorm{1.0}.clip(none).norm.item<double>() == 0);
  CHECK(st::ClipGradNorm{1.0}.clip(empty).norm.item<double>() == 0);
  CHECK(clipped(st::ClipGradNormPerGroup{}, empty).norm.item<double>() == 0);
  CHECK(clipped(st::AdaptiveGradClip{}, none).norm.item<double>() == 0);
}

TEST_CASE("every kind of clipping refuses inf and NaN, a clamp does not hide them") {
  for (const double bad : {infinity, -infinity, static_cast<double>(NAN)}) {
    const auto refuses = [&](const auto& clip) {
      std::vector<at::Tensor> gradients{torch::ones({2, 2}), torch::tensor({1.0, bad}).to(at::kFloat)};
      const st::ClipResult result = clipped(clip, gradients, {torch::ones({2, 2}), torch::ones({2})});
      return result.refused.template item<float>() == 1;
    };
    CHECK(refuses(st::ClipGradNorm{1.0}));
    CHECK(refuses(st::ClipGradNorm{1.0, infinity}));
    CHECK(refuses(st::ClipGradNormPerGroup{}));
    CHECK(refuses(st::ClipGradValue{1.0}));
    CHECK(refuses(st::AdaptiveGradClip{}));
  }
}

TEST_CASE("adaptive clipping compares each row's gradient with its weights") {
  // Rows of weights with norms 5 and 0: limits 0.1 * 5 and 0.1 * eps.
  const std::vector<at::Tensor> parameters{torch::tensor({{3.0F, 4.0F}, {0.0F, 0.0F}}), torch::tensor({3.0F, 4.0F})};
  std::vector<at::Tensor> gradients{torch::tensor({{0.0F, 2.0F}, {0.0F, 2.0F}}), torch::tensor({0.0F, 0.25F})};
  const st::ClipResult result = clipped(st::AdaptiveGradClip{.clip_factor = 0.1, .eps = 1e-2}, gradients, parameters);
  CHECK(std::abs(gradients[0][0][1].item<double>() - 0.5) < 1e-6);
  CHECK(std::abs(gradients[0][1][1].item<double>() - 1e-3) < 1e-8);
  CHECK(std::abs(gradients[1][1].item<double>() - 0.25) < 1e-6);  // below its limit: as it was
  CHECK(std::abs(result.norm.item<double>() - std::sqrt(4 + 4 + 0.0625)) < 1e-6);
}

TEST_CASE("clipping settings that cannot work are refused") {
  const auto refused = [](const auto& clip, const char* text) {
    CHECK_THROWS_MATCHES(clip.validate(), st::ConfigError, MessageMatches(ContainsSubstring(text)));
  };
  refused(st::ClipGradNorm{0.0}, "max_norm is 0");
  refused(st::ClipGradNorm{1.0, -2.0}, "norm_type is -2");
  refused(st::ClipGradNorm{NAN}, "max_norm is nan");
  refused(st::ClipGradValue{-1.0}, "clip_value is -1");
  refused(st::ClipGradNormPerGroup{{}}, "is empty");
  refused(st::ClipGradNormPerGroup{{1.0, 0.0}}, "max_norm is 0");
  refused(st::AdaptiveGradClip{.clip_factor = 0}, "clip_factor is 0");
  refused(st::SpikeOptions{.z_score = 0}, "z_score is 0");
  refused(st::SpikeOptions{.window = 1}, "window is 1");
  refused(st::SpikeOptions{.window = 10, .warmup = 11}, "warmup is 11");
  std::vector<at::Tensor> three(3, torch::ones({1}));
  CHECK_THROWS_MATCHES(clipped(st::ClipGradNormPerGroup{{1.0, 2.0}}, three), st::ConfigError,
                       MessageMatches(ContainsSubstring("2 max_norms")));
}

TEST_CASE("SkipSpikes skips the window whose loss stands out, keeps a record, and reads nothing in between") {
  support::Mlp net = support::seeded(1);
  st::SkipSpikes spikes{st::SpikeOptions{.z_score = 6, .window = 20, .warmup = 10}, st::ClipGradNorm{1.0}};
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 1e-3}), st::MSE{}, std::ref(spikes));
  // Before anything can be judged, an outlier passes; it is not in the last 20 later on.
  CHECK(trainer.step(regression(0, 30)).taken());
  for (int64_t i = 1; i < 30; ++i) CHECK(trainer.step(regression(i, 0)).taken());
  const auto before = support::clones(net->parameters());
  {
    const st::OpCounter counter;
    trainer.step(regression(30, 30));
    trainer.step(regression(31, 0));
    CHECK(counter.host_reads() == 0);
  }
  CHECK(trainer.state().step == 31);
  REQUIRE(spikes.skipped().size() == 1);
  const st::SkippedStep& skipped = spikes.skipped()[0];
  CHECK(skipped.window == 30);
  CHECK(skipped.loss > 500);
  CHECK(skipped.loss_z > 6);
  // A level that stays is not a spike for ever.
  int64_t refused = 0;
  for (int64_t i = 0; i < 15; ++i) refused += !trainer.step(regression(40 + i, 30)).taken();
  CHECK(refused == 10);
  CHECK(spikes.skipped().size() == 11);
}

TEST_CASE("SkipSpikes judges nothing by a refused window, and a skipped one changes nothing") {
  support::Mlp net = support::seeded(1), twin = support::seeded(1);
  const st::SpikeOptions options{.z_score = 5, .window = 10, .warmup = 5};
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.01, .momentum = 0.9}), st::MSE{},
                      st::SkipSpikes(options, st::ClipGradNorm{1.0}));
  st::Trainer never(twin, st::optim::SGD(twin->parameters(), {.lr = 0.01, .momentum = 0.9}), st::MSE{},
                    st::SkipSpikes(options, st::ClipGradNorm{1.0}));
  const support::Batch spike = regression(99, 30);
  support::Batch nan = regression(98, 0);
  nan.first = nan.first * NAN;
  for (int64_t i = 0; i < 12; ++i) {
    CHECK(trainer.step(regression(i, 0)).taken());
    CHECK(never.step(regression(i, 0)).taken());
    if (i == 3 || i == 8) CHECK_FALSE(trainer.step(nan).taken());
    if (i == 9) CHECK_FALSE(trainer.step(spike).taken());
  }
  CHECK(support::same_bits(support::clones(net->parameters()), support::clones(twin->parameters())));
  CHECK(trainer.policy<st::SkipSpikes<st::ClipGradNorm>>().skipped().size() == 1);
}
