// SPDX-License-Identifier: Apache-2.0
#include "saturate/distributed/sync_batch_norm.hpp"
#include "distributed_support.hpp"
#include "saturate/averaging/update_batch_norm.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/recompute/policy.hpp"
#include "saturate/trainer.hpp"

#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

namespace st = saturate;
using support::RankChecks;
using support::dist::ProcessGroup;
using support::dist::SyncBatchNorm;

namespace {

constexpr int64_t channels = 3;

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const st::Error& error) {
    return error.what();
  }
  return "no error";
}

/// Rank r's batch; where there are three ranks or more, the last has nothing.
int64_t samples_of(int rank, int ranks) { return ranks >= 3 && rank + 1 == ranks ? 0 : 2 + 3 * rank; }

struct Case {
  std::string name;
  std::vector<int64_t> shape;  // of a sample, after the channels
  at::ScalarType dtype = at::kFloat;
  double tolerance = 1e-5;
  torch::nn::BatchNormOptions options = torch::nn::BatchNormOptions(channels);
  bool channels_last = false;
};

struct Data {
  at::Tensor input, weights;  // [samples, C, ...]; the loss is sum(output * weights)
};

Data data_of(int rank, int ranks, int64_t step, const Case& one) {
  torch::manual_seed(100 * step + rank);
  std::vector<int64_t> shape{samples_of(rank, ranks), channels};
  shape.insert(shape.end(), one.shape.begin(), one.shape.end());
  // Ranks have other means and variances, and channels too.
  std::vector<int64_t> by_channel(shape.size(), 1);
  by_channel[1] = channels;
  const at::Tensor offset = torch::arange(1, channels + 1).view(by_channel) * (rank + 1);
  at::Tensor input = (torch::randn(shape) * (1.0 + rank) + offset).to(one.dtype);
  if (one.channels_last) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  return {input, torch::randn(shape).to(one.dtype)};
}

struct Seen {
  at::Tensor output, input_gradient;
  std::vector<at::Tensor> gradients;
};

template <class Norm>
Seen run(Norm& norm, const Data& data) {
  Seen seen;
  const at::Tensor input = data.input.detach().clone().requires_grad_();
  for (at::Tensor& parameter : norm->parameters()) parameter.mutable_grad() = at::Tensor();
  seen.output = norm->forward(input);
  (seen.output * data.weights).sum().backward();
  seen.input_gradient = input.grad();
  for (const at::Tensor& parameter : norm->parameters()) seen.gradients.push_back(parameter.grad());
  return seen;
}

template <class Norm>
Norm norm_with(const Case& one, int64_t seed) {
  torch::manual_seed(seed);
  Norm norm(one.options);
  if (one.dtype == at::kDouble) norm->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : norm->parameters()) parameter.add_(torch::randn_like(parameter) * 0.3);
  return norm;
}

double error_of(const at::Tensor& ours, const at::Tensor& wanted) {
  if (wanted.numel() == 0) return ours.sizes() == wanted.sizes() ? 0 : 1;
  return support::relative_error({ours.to(at::kDouble)}, {wanted.to(at::kDouble)});
}

/// Each rank's batch against plain BatchNorm on the whole batch, which every rank has besides.
template <class Norm>
void compare(const ProcessGroup& group, RankChecks& check, const Case& one) {
  const int ranks = group.world_size(), rank = group.rank();
  auto ours = norm_with<SyncBatchNorm>(one, 5);
  auto whole = norm_with<Norm>(one, 5);
  support::dist::convert_sync_batch_norm(*ours, group);
  const auto near = [&](const at::Tensor& a, const at::Tensor& b, const std::string& what) {
    const double error = error_of(a, b);
    check(error < one.tolerance, one.name + ", " + what + ": relative error " + std::to_string(error));
  };
  for (int64_t step = 0; step < 3; ++step) {
    std::vector<at::Tensor> inputs, weights;
    int64_t begin = 0;
    for (int other = 0; other < ranks; ++other) {
      const Data data = data_of(other, ranks, step, one);
      inputs.push_back(data.input);
      weights.push_back(data.weights);
      if (other < rank) begin += data.input.size(0);
    }
    const Seen wanted = run(whole, {at::cat(inputs), at::cat(weights)});
    const Data mine = data_of(rank, ranks, step, one);
    const Seen seen = run(ours, mine);
    const int64_t samples = mine.input.size(0);
    near(seen.output, wanted.output.narrow(0, begin, samples), "output");
    near(seen.input_gradient, wanted.input_gradient.narrow(0, begin, samples), "gradient of the input");
    check(seen.output.scalar_type() == one.dtype, one.name + ": another dtype");
    if (one.channels_last && samples > 0) {
      check(seen.output.is_contiguous(at::MemoryFormat::ChannelsLast), one.name + ": another memory format");
    }
    for (std::size_t i = 0; i < wanted.gradients.size(); ++i) {
      const at::Tensor sum = seen.gradients[i].clone();
      group.all_reduce(sum);
      near(sum, wanted.gradients[i], "gradient of parameter " + std::to_string(i));
    }
    for (std::size_t i = 0; i < whole->buffers().size(); ++i) {
      near(ours->buffers()[i], whole->buffers()[i], "buffer " + std::to_string(i));
    }
    check(support::same_on_all_ranks(group, ours->buffers()), one.name + ": ranks have different buffers");
  }
  ours->eval();
  whole->eval();
  const Data mine = data_of(rank, ranks, 9, one);
  if (one.options.track_running_stats() && mine.input.numel() > 0) {
    near(run(ours, mine).output, run(whole, mine).output, "output in eval mode");
  }
}

const support::RankEntry oracle("SyncBatchNorm, oracle", [](const ProcessGroup& group, RankChecks& check) {
  using torch::nn::BatchNormOptions;
  using Shape = std::vector<int64_t>;
  compare<torch::nn::BatchNorm2d>(group, check, Case{"2d", Shape{4, 5}});
  compare<torch::nn::BatchNorm2d>(group, check, Case{"2d, float64", Shape{4, 5}, at::kDouble, 1e-12});
  compare<torch::nn::BatchNorm1d>(group, check, Case{"1d", Shape{7}});
  compare<torch::nn::BatchNorm1d>(group, check, Case{"features", Shape{}});
  compare<torch::nn::BatchNorm3d>(group, check, Case{"3d", Shape{2, 3, 2}});
  Case one{"channels last", Shape{4, 5}};
  one.channels_last = true;
  compare<torch::nn::BatchNorm2d>(group, check, one);
  compare<torch::nn::BatchNorm2d>(group, check, Case{"bfloat16", Shape{4, 5}, at::kBFloat16, 2e-2});
  compare<torch::nn::BatchNorm2d>(
      group, check,
      Case{"cumulative", Shape{4, 5}, at::kDouble, 1e-12, BatchNormOptions(channels).momentum(std::nullopt).eps(1e-3)});
  compare<torch::nn::BatchNorm2d>(
      group, check, Case{"not affine", Shape{4, 5}, at::kDouble, 1e-12, BatchNormOptions(channels).affine(false)});
  compare<torch::nn::BatchNorm2d>(
      group, check,
      Case{"not tracking", Shape{4, 5}, at::kDouble, 1e-12, BatchNormOptions(channels).track_running_stats(false)});
});

// Without the exchange the outputs are others, or the comparison above would prove nothing.
const support::RankEntry plain("SyncBatchNorm, plain", [](const ProcessGroup& group, RankChecks& check) {
  const Case one{"plain", {4, 5}};
  auto local = norm_with<torch::nn::BatchNorm2d>(one, 5);
  auto synced = norm_with<SyncBatchNorm>(one, 5);
  support::dist::convert_sync_batch_norm(*synced, group);
  const Data mine = data_of(group.rank(), 2, 0, one);
  check(error_of(run(local, mine).output, run(synced, mine).output) > 1e-2, "BatchNorm and SyncBatchNorm agree");
});

struct NetImpl : torch::nn::Module {
  NetImpl() {
    body = register_module(
        "body", torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)), torch::nn::BatchNorm2d(4),
                                      torch::nn::ReLU(), torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3)),
                                      torch::nn::BatchNorm2d(4)));
    head = register_module("head", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return head(torch::tanh(st::call_each(body, x)).mean({2, 3})); }
  torch::nn::Sequential body{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

support::Batch images(int rank, int64_t window, int64_t micro) {
  torch::manual_seed(1000 * window + 10 * micro + rank);
  const int64_t samples = 2 + rank;
  return {torch::randn({samples, 2, 7, 7}, at::kDouble) * (1 + rank), torch::randint(4, {samples})};
}

/// With Ddp: training is that of the whole batch, BatchNorm included.
const support::RankEntry training("SyncBatchNorm, training", [](const ProcessGroup& group, RankChecks& check) {
  const auto train = [&](const ProcessGroup& over, int first, int last, auto... policies) {
    Net net = support::seeded<Net>(3, at::kDouble);
    support::dist::convert_sync_batch_norm(*net, over);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1, .momentum = 0.9}), st::CrossEntropy{},
                        policies...);
    for (int64_t window = 0; window < 3; ++window) {
      std::vector<support::Batch> micro_batches;
      for (int64_t micro = 0; micro < 2; ++micro) {
        std::vector<at::Tensor> inputs, targets;
        for (int rank = first; rank <= last; ++rank) {
          const auto batch = images(rank, window, micro);
          inputs.push_back(batch.first);
          targets.push_back(batch.second);
        }
        micro_batches.emplace_back(at::cat(inputs), at::cat(targets));
      }
      trainer.step(micro_batches);
    }
    auto all = support::clones(net->parameters());
    for (const at::Tensor& buffer : net->buffers()) all.push_back(buffer.to(at::kDouble));
    return all;
  };
  const auto whole = train(ProcessGroup(), 0, group.world_size() - 1);
  const int rank = group.rank();
  const auto near = [&](const std::vector<at::Tensor>& ours, const std::string& what) {
    const double error = support::relative_error(ours, whole);
    check(error < 1e-10, what + ": relative error " + std::to_string(error));
    check(support::same_on_all_ranks(group, ours), what + ": ranks differ");
  };
  near(train(group, rank, rank, st::Ddp(group)), "Ddp");
  near(train(group, rank, rank, st::Ddp(group, {.bucket_bytes = 256, .buffers = st::distributed::Buffers::keep})),
       "Ddp, small buckets");
  near(train(group, rank, rank, st::Ddp(group), st::Recompute::all()), "recomputed");
});

const support::RankEntry limits("SyncBatchNorm, limits", [](const ProcessGroup& group, RankChecks& check) {
  SyncBatchNorm norm(channels);
  support::dist::convert_sync_batch_norm(*norm, group);
  // One value a channel has no variance; one on each rank has.
  const auto forward = [&](int64_t samples) -> std::string {
    try {
      norm->forward(torch::randn({samples, channels}));
    } catch (const st::ConfigError& error) {
      return error.what();
    }
    return "";
  };
  check(forward(1).empty(), "a value on each rank is refused");
  check(forward(group.rank() == 0 ? 1 : 0).find("no more than one value") != std::string::npos, "one value in all");
  // Twice differentiated.
  const at::Tensor input = torch::randn({4, channels}).requires_grad_();
  const at::Tensor loss = norm->forward(input).square().sum();
  try {
    loss.backward({}, std::nullopt, /*create_graph=*/true);
    check(false, "a second derivative is not refused");
  } catch (const st::StateError& error) {
    check(std::string(error.what()).find("differentiated twice") != std::string::npos, error.what());
  }
  // A rank without data makes no forward pass.
  const std::string message =
      message_of([&] { st::Ddp(group, {}, st::UnevenInputs::join).attach(*norm, c10::Device(c10::kCPU)); });
  check(message.find("UnevenInputs::join and SyncBatchNorm") != std::string::npos, message);
});

struct TypedImpl : torch::nn::Module {
  TypedImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    list = register_module("list", torch::nn::ModuleList(torch::nn::BatchNorm2d(4)));
    body = register_module("body", torch::nn::Sequential(torch::nn::BatchNorm2d(4)));
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::ModuleList list{nullptr};
  torch::nn::Sequential body{nullptr};
};
TORCH_MODULE(Typed);

}  // namespace

TEST_CASE("SyncBatchNorm: the whole batch's outputs, gradients and statistics", "[multi]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  support::check_ranks(ranks, "SyncBatchNorm, oracle");
}

TEST_CASE("SyncBatchNorm: the comparison notices plain BatchNorm", "[multi]") {
  support::check_ranks(2, "SyncBatchNorm, plain");
}

TEST_CASE("SyncBatchNorm with Ddp trains as one process does with the whole batch", "[multi]") {
  const int ranks = GENERATE(2, 3);
  support::check_ranks(ranks, "SyncBatchNorm, training");
}

TEST_CASE("SyncBatchNorm: a single value, and second derivatives", "[multi]") {
  support::check_ranks(2, "SyncBatchNorm, limits");
}

TEST_CASE("convert_sync_batch_norm: keeps parameters, buffers, names and modes") {
  torch::nn::BatchNorm2d shared(4);
  torch::nn::Sequential net(torch::nn::Conv2d(2, 4, 3), shared, torch::nn::ReLU(), torch::nn::BatchNorm2d(4), shared);
  net->eval();
  shared->running_mean.fill_(7);
  const auto parameters = net->parameters();
  const auto names = net->named_parameters().keys(), buffers = net->named_buffers().keys();
  CHECK(support::dist::convert_sync_batch_norm(*net, ProcessGroup()) == 2);
  CHECK(net->named_parameters().keys() == names);
  CHECK(net->named_buffers().keys() == buffers);
  for (std::size_t i = 0; i < parameters.size(); ++i) CHECK(net->parameters()[i].is_same(parameters[i]));
  CHECK(net->ptr<support::dist::SyncBatchNormImpl>(1) == net->ptr<support::dist::SyncBatchNormImpl>(4));
  auto& norm = net->at<support::dist::SyncBatchNormImpl>(1);
  CHECK_FALSE(norm.is_training());
  CHECK(norm.named_buffers()["running_mean"].data_ptr() == shared->running_mean.data_ptr());
  CHECK(norm.running_mean[0].item<float>() == 7);
  CHECK(norm.weight.is_same(shared->weight));
  // One process: BatchNorm, in both modes.
  net->train();
  const at::Tensor x = torch::randn({3, 2, 6, 6});
  const auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  CHECK(clone->at<support::dist::SyncBatchNormImpl>(1).group().has_value());
  CHECK(support::same_bits(clone->forward(x), net->forward(x)));
  CHECK(norm.num_batches_tracked.item<int64_t>() == 2);
  CHECK_FALSE(support::dist::has_sync_batch_norm(*net));
}

TEST_CASE("convert_sync_batch_norm: what it cannot exchange is named, and nothing is changed") {
  Typed net;
  const std::string message = message_of([&] { support::dist::convert_sync_batch_norm(*net, ProcessGroup()); });
  CAPTURE(message);
  CHECK(message.find("norm, list.0: a BatchNorm outside") != std::string::npos);
  CHECK(message.find("saturate::distributed::SyncBatchNorm") != std::string::npos);
  CHECK(net->body->ptr(0)->as<torch::nn::BatchNorm2d>() != nullptr);
  torch::nn::BatchNorm1d alone(3);
  CHECK(message_of([&] { support::dist::convert_sync_batch_norm(*alone, ProcessGroup()); }).find("the model") !=
        std::string::npos);
  CHECK(support::dist::convert_sync_batch_norm(*torch::nn::Linear(2, 2), ProcessGroup()) == 0);
}

TEST_CASE("update_batch_norm knows SyncBatchNorm") {
  const std::vector<support::Batch> batches{{torch::randn({4, channels}), at::Tensor()},
                                            {torch::randn({4, channels}) + 2, at::Tensor()}};
  torch::nn::Sequential net{torch::nn::BatchNorm1d(channels)}, plain{torch::nn::BatchNorm1d(channels)};
  support::dist::convert_sync_batch_norm(*net, ProcessGroup());
  st::update_batch_norm(net, batches);
  st::update_batch_norm(plain, batches);
  for (std::size_t i = 0; i < plain->buffers().size(); ++i) {
    CHECK(support::same_bits(net->buffers()[i], plain->buffers()[i]));
  }
  CHECK(net->buffers()[0].abs().max().item<float>() > 0.5);
}

TEST_CASE("SyncBatchNorm: no group, another shape") {
  SyncBatchNorm norm(channels);
  const at::Tensor x = torch::randn({4, channels});
  CHECK(message_of([&] { norm->forward(x); }).find("it has no group yet") != std::string::npos);
  norm->eval();
  CHECK_NOTHROW(norm->forward(x));
  CHECK(message_of([&] { norm->forward(torch::randn({4, 5})); }).find("give [N, 3, ...]") != std::string::npos);
  CHECK(message_of([&] { norm->forward(torch::randn({4})); }).find("shape [4]") != std::string::npos);
}
