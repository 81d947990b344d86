// SPDX-License-Identifier: Apache-2.0
// What every communication hook keeps to, on spawned ranks. The main rule, in units of gradients over the world size:
//
//   sum of shares + residuals before = what came back + residuals after
//
// with residuals of 0 for hooks that keep none. Deliberately broken hooks must fail.
#include "distributed_support.hpp"
#include "saturate/distributed/compress.hpp"
#include "saturate/distributed/distributed_data_parallel.hpp"
#include "saturate/distributed/power_sgd.hpp"
#include "saturate/distributed/top_k.hpp"
#include "saturate/error.hpp"

#include <c10/util/StringUtil.h>
#include <catch2/generators/catch_generators.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace saturate::distributed;
using saturate::ConfigError;
using saturate::StateError;
using support::RankChecks;
using support::same_bits;

namespace {

// Relative to the largest magnitude of a parameter's shares, added over ranks.
constexpr double tolerance_of_feedback = 1e-5;  // sent + residual = sum, whatever the gradients' dtype
constexpr double tolerance_in_double = 1e-12;
constexpr double tolerance_in_float = 1e-6;
constexpr double tolerance_in_half = 8.0 / (1 << 11);  // a few roundings of 2^-11
constexpr double tolerance_in_bfloat16 = 8.0 / (1 << 8);
constexpr double tolerance_of_convergence = 0.02;  // of the loss after 200 steps, against the plain run's

double tolerance_of(at::ScalarType dtype) {
  if (dtype == at::kDouble) return tolerance_in_double;
  if (dtype == at::kFloat) return tolerance_in_float;
  return dtype == at::kHalf ? tolerance_in_half : tolerance_in_bfloat16;
}

using Tensors = std::vector<at::Tensor>;
using Buckets = std::vector<std::vector<std::size_t>>;  // indices of parameters

struct Candidate {
  std::string name;
  std::function<std::shared_ptr<CommHook>()> make;
  double rounding = 0;                     // of what is sent; 0: that of the gradients
  bool feedback = false;                   // what is not sent comes later
  double bytes = 1;                        // at most, of those of float32, for the parameters below
  double least_error = 0, most_error = 0;  // that it reports for them
};

/// What a check finds.
struct Findings {
  std::vector<std::string> failures;
  std::string at;
  void operator()(bool holds, const std::string& what) {
    if (!holds) failures.push_back(at + ": " + what);
  }
};

using Check = std::function<void(const ProcessGroup&, const Candidate&, Findings&)>;

// A matrix, a vector, a convolution in channels_last, a transposed matrix, one number, sizes of 1.
Tensors parameters_of(at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  return {at::zeros({24, 16}, options),
          at::zeros({16}, options),
          at::zeros({8, 4, 3, 3}, options).contiguous(at::MemoryFormat::ChannelsLast),
          at::zeros({16, 24}, options).t(),
          at::zeros({}, options),
          at::zeros({32, 16, 1, 1}, options).contiguous(at::MemoryFormat::ChannelsLast)};
}
const Buckets first_buckets{{5, 4, 3, 2, 1, 0}}, rebuilt_buckets{{2, 4}, {3, 5, 1}, {0}};

std::vector<std::pair<std::string, at::Tensor>> named(const Tensors& parameters) {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (std::size_t i = 0; i < parameters.size(); ++i) result.emplace_back("p" + std::to_string(i), parameters[i]);
  return result;
}

/// This rank's, of a window.
Tensors gradients_of(const Tensors& parameters, int rank, int64_t window) {
  torch::manual_seed(1000 * window + rank);
  Tensors result;
  for (const at::Tensor& parameter : parameters) {
    result.push_back(at::randn(parameter.sizes(), at::kDouble).add_(0.5).to(parameter.scalar_type()));
  }
  return result;
}

at::Tensor value_of(const CommHook::Future& future) {
  future->wait();
  const c10::IValue value = future->value();
  return value.isTensor() ? value.toTensor() : value.toTensorVector().at(0);
}

Bucket bucket_of(const Tensors& parameters, const Tensors& gradients, const Buckets& buckets, std::size_t index) {
  Bucket bucket{.index = index, .last = index + 1 == buckets.size()};
  int64_t size = 0, offset = 0;
  for (const std::size_t i : buckets[index]) size += parameters[i].numel();
  bucket.gradients = at::empty({size}, parameters[0].options().memory_format(std::nullopt));
  for (const std::size_t i : buckets[index]) {
    bucket.parameters.push_back(parameters[i]);
    bucket.views.push_back(in_shape_of(parameters[i], bucket.gradients.narrow(0, offset, parameters[i].numel())));
    bucket.views.back().copy_(gradients[i]);
    offset += parameters[i].numel();
  }
  return bucket;
}

/// All buckets are started before one is waited for, as in a backward.
Tensors reduce(CommHook& hook, const Tensors& parameters, const Tensors& gradients, const Buckets& buckets,
               double divisor) {
  std::vector<CommHook::Future> futures;
  for (std::size_t index = 0; index < buckets.size(); ++index) {
    Bucket bucket = bucket_of(parameters, gradients, buckets, index);
    futures.push_back(hook.reduce(bucket, divisor));
  }
  Tensors result(parameters.size());
  for (std::size_t index = 0; index < buckets.size(); ++index) {
    const at::Tensor flat = value_of(futures[index]);
    int64_t offset = 0;
    for (const std::size_t i : buckets[index]) {
      result[i] = in_shape_of(parameters[i], flat.narrow(0, offset, parameters[i].numel())).clone();
      offset += parameters[i].numel();
    }
  }
  return result;
}

at::Tensor over_ranks(const ProcessGroup& group, const at::Tensor& tensor) {
  const at::Tensor sum = tensor.detach().to(at::kDouble).contiguous().clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum);
  return sum;
}

at::Tensor residual_of(const HookState& state, const std::string& name) {
  const auto found = state.parameters.find(name);
  if (found == state.parameters.end() || !found->second.contains("residual")) return {};
  return found->second.at("residual");
}

bool finite(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.isfinite().all().item<bool>()) return false;
  }
  return true;
}

bool same_state(const HookState& a, const HookState& b, bool windows = false) {
  if (a.type != b.type || a.parameters.size() != b.parameters.size() || (windows && a.windows != b.windows))
    return false;
  for (const auto& [name, tensors] : a.parameters) {
    const auto other = b.parameters.find(name);
    if (other == b.parameters.end() || other->second.size() != tensors.size()) return false;
    for (const auto& [what, tensor] : tensors) {
      if (!other->second.contains(what) || !same_bits(tensor, other->second.at(what))) return false;
    }
  }
  return true;
}

/// The main rule, for parameters by name.
class Ledger {
 public:
  Ledger(const ProcessGroup& group, const Candidate& candidate, CommHook& hook)
      : group_(group), candidate_(candidate), hook_(hook), before_(hook.state()) {}

  /// @param scale of the losses, which gradients and what came back are multiplied by.
  void check(const std::vector<std::pair<std::string, at::Tensor>>& gradients, const Tensors& reduced, double divisor,
             Findings& find, double scale = 1) {
    const HookState after = hook_.state();
    const double world = group_.world_size();
    Tensors columns;
    const auto add = [&](const at::Tensor& tensor) { columns.push_back(tensor.to(at::kDouble).reshape({-1})); };
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto& [name, gradient] = gradients[i];
      const at::Tensor before = residual_of(before_, name), left = residual_of(after, name);
      add(gradient.to(at::kDouble) / (world * scale));
      add(before.defined() ? before : at::zeros_like(gradient));
      add(left.defined() ? left : at::zeros_like(gradient));
      add(reduced[i].to(at::kDouble) * (divisor / world / scale));
    }
    const at::Tensor all = group_.all_gather(at::cat(columns));  // one collective: they take the suite's time
    int64_t at = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto& [name, gradient] = gradients[i];
      const auto next = [&, size = gradient.numel()] { return all.narrow(1, std::exchange(at, at + size), size); };
      const at::Tensor shares = next(), before = next(), left = next(), back = next();
      const at::Tensor off = (back[0] + left.sum(0) - before.sum(0) - shares.sum(0)).abs().max();
      const double error = (off / (shares.abs().sum(0) + before.abs().sum(0)).max().clamp_min(1e-30)).item<double>();
      double tolerance = std::max(tolerance_of(reduced[i].scalar_type()), candidate_.rounding);
      const bool kept = residual_of(after, name).defined() && reduced[i].scalar_type() != at::kDouble;
      if (kept) tolerance = tolerance_of_feedback;
      find(error <= tolerance, name + ": what came back + residual is off by " + std::to_string(error));
      find((back == back[0]).all().item<bool>(), name + ": ranks got different gradients");
    }
    before_ = after;
  }
  const HookState& state() const { return before_; }

 private:
  const ProcessGroup& group_;
  const Candidate& candidate_;
  CommHook& hook_;
  HookState before_;
};

/// A hook and parameters of its own.
struct Bench {
  Bench(const ProcessGroup& group, const Candidate& candidate, at::ScalarType dtype = at::kFloat)
      : group(group), parameters(parameters_of(dtype)), hook(candidate.make()) {
    hook->attach(group);
    hook->name_parameters(named(parameters));
    ledger = std::make_unique<Ledger>(group, candidate, *hook);
  }
  Tensors mine(int64_t window) const { return gradients_of(parameters, group.rank(), window); }
  Tensors reduce(const Tensors& gradients, const Buckets& buckets = rebuilt_buckets) {
    return ::reduce(*hook, parameters, gradients, buckets, group.world_size());
  }
  void run(int64_t window, Findings& find) { run(mine(window), find); }
  Tensors run(const Tensors& gradients, Findings& find) {
    Tensors reduced = reduce(gradients);
    ledger->check(by_name(gradients), reduced, group.world_size(), find);
    return reduced;
  }
  std::vector<std::pair<std::string, at::Tensor>> by_name(const Tensors& gradients) const {
    auto result = named(parameters);
    for (std::size_t i = 0; i < gradients.size(); ++i) result[i].second = gradients[i];
    return result;
  }

  const ProcessGroup& group;
  Tensors parameters;
  std::shared_ptr<CommHook> hook;
  std::unique_ptr<Ledger> ledger;
};

void check_sums(const ProcessGroup& group, const Candidate& candidate, Findings& find) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    find.at = std::string("sums of ") + c10::toString(dtype);
    Bench bench(group, candidate, dtype);
    for (int64_t window = 0; window < 6; ++window) {
      const double divisor = window % 2 == 0 ? group.world_size() : 1;
      const Tensors mine = bench.mine(window);
      // Buckets are made anew after the first window.
      const Tensors reduced =
          reduce(*bench.hook, bench.parameters, mine, window == 0 ? first_buckets : rebuilt_buckets, divisor);
      bench.ledger->check(bench.by_name(mine), reduced, divisor, find);
    }
    if (candidate.feedback) find(!bench.ledger->state().parameters.empty(), "nothing is kept");
  }
}

// What is lost for good after many windows of the same gradients: a hook that forgets loses more and more.
void check_nothing_is_lost(const ProcessGroup& group, const Candidate& candidate, Findings& find) {
  find.at = "twenty windows";
  Bench bench(group, candidate);
  const Tensors mine = bench.mine(0);
  Tensors total;
  for (const at::Tensor& parameter : bench.parameters) total.push_back(at::zeros(parameter.sizes(), at::kDouble));
  constexpr int windows = 20;
  for (int window = 0; window < windows; ++window) {
    const Tensors reduced = bench.reduce(mine);
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += reduced[i];
  }
  const HookState state = bench.hook->state();
  for (std::size_t i = 0; i < total.size(); ++i) {
    const at::Tensor whole = over_ranks(group, mine[i]) * windows / group.world_size();
    const at::Tensor left = residual_of(state, "p" + std::to_string(i));
    const at::Tensor with_left = left.defined() ? total[i] + over_ranks(group, left) : total[i];
    const double tolerance = std::max(candidate.rounding, 2 * tolerance_of_feedback);
    const double error = support::relative_error({with_left}, {whole});
    find(error <= tolerance, "p" + std::to_string(i) + " is off by " + std::to_string(error));
    if (!candidate.feedback) continue;
    const double behind = support::relative_error({total[i]}, {whole});
    find(behind < 0.9, "p" + std::to_string(i) + " has hardly been sent: " + std::to_string(behind));
  }
}

void check_non_finite(const ProcessGroup& group, const Candidate& candidate, Findings& find) {
  const double infinity = std::numeric_limits<double>::infinity();
  // In the first, second and last bucket; in matrices and a vector.
  const std::vector<std::pair<double, std::size_t>> cases{{infinity, 2}, {-infinity, 1}, {std::nan(""), 0}};
  for (const auto& [value, where] : cases) {
    find.at = std::to_string(value) + " in p" + std::to_string(where);
    Bench bench(group, candidate);
    bench.run(0, find);
    bench.run(1, find);
    const HookState before = bench.hook->state();
    Tensors bad = bench.mine(2);
    if (group.rank() == group.world_size() - 1) bad[where].view(-1)[3] = value;
    find(!finite(bench.reduce(bad)), "this rank does not see it");
    const HookState after = bench.hook->state();
    find(same_state(before, after), "what is kept has changed");
    bench.run(3, find);
    for (const auto& [name, tensors] : bench.hook->state().parameters) {
      for (const auto& [what, tensor] : tensors) find(finite({tensor}), what + " of " + name + " is not finite");
    }
  }
}

void check_windows_that_do_not_count(const ProcessGroup& group, const Candidate& candidate, Findings& find) {
  Bench bench(group, candidate);
  find.at = "refused";
  bench.run(0, find);
  HookState before = bench.hook->state();
  bench.reduce(bench.mine(1));
  bench.hook->refuse(at::zeros({}));
  bench.hook->refuse(at::ones({}));
  find(same_state(before, bench.hook->state()), "what is kept has changed");
  bench.run(2, find);

  find.at = "not refused";
  before = bench.hook->state();
  const Tensors mine = bench.mine(3);
  const Tensors reduced = bench.reduce(mine);
  bench.hook->refuse(at::zeros({}));
  bench.ledger->check(bench.by_name(mine), reduced, group.world_size(), find);
  if (candidate.feedback) find(!same_state(before, bench.hook->state()), "nothing new is kept");

  find.at = "given up";  // an exception leaves backward after a bucket or two, on all ranks; the window is run again
  for (std::size_t buckets = 1; buckets < rebuilt_buckets.size(); ++buckets) {
    before = bench.hook->state();
    std::vector<CommHook::Future> futures;
    for (std::size_t index = 0; index < buckets; ++index) {
      Bucket bucket = bucket_of(bench.parameters, bench.mine(4), rebuilt_buckets, index);
      futures.push_back(bench.hook->reduce(bucket, group.world_size()));
    }
    bench.run(5, find);
  }
  bench.run(6, find);
}

void check_zero_gradients(const ProcessGroup& group, const Candidate& candidate, Findings& find) {
  find.at = "gradients of zero";
  Bench bench(group, candidate);
  Tensors zeros;
  for (const at::Tensor& parameter : bench.parameters) zeros.push_back(at::zeros_like(parameter));
  for (int i = 0; i < 3; ++i) bench.run(zeros, find);
  // Something comes after all, and is sent.
  const Tensors mine = bench.mine(0);
  at::Tensor total = at::zeros({24, 16}, at::kDouble);
  for (int i = 0; i < 10; ++i) {
    total += bench.run(mine, find)[0];
    total += bench.run(zeros, find)[0];
  }
  find(total.abs().max().item<double>() > 0 || !candidate.feedback, "nothing is ever sent");
  // Unused on all ranks but one.
  Tensors only_one = group.rank() == 0 ? bench.mine(1) : zeros;
  bench.run(only_one, find);
}

void check_scale(const ProcessGroup& group, const Candidate& candidate, Findings& find) {
  find.at = "a loss scale that changes";
  Bench bench(group, candidate);
  double scale = 1;
  for (int64_t window = 0; window < 4; ++window) {
    scale = window == 2 ? 8 : 1024;
    bench.hook->scaled_by(at::full({}, scale));
    Tensors scaled = bench.mine(window);
    for (at::Tensor& gradient : scaled) gradient *= scale;
    bench.ledger->check(bench.by_name(scaled), bench.reduce(scaled), group.world_size(), find, scale);
  }
}

// 4 ranks of 30000 in float16: the mean is 30000, not inf.
void check_range(const ProcessGroup& group, const Candidate& candidate, Findings& find) {
  for (const auto dtype : {at::kHalf, at::kFloat}) {
    find.at = std::string("30000 in ") + c10::toString(dtype);
    Bench bench(group, candidate, dtype);
    Tensors mine = bench.mine(0);
    for (at::Tensor& gradient : mine) gradient.fill_(30000);
    const Tensors reduced = bench.reduce(mine);
    find(finite(reduced), "it is not finite");
    bench.ledger->check(bench.by_name(mine), reduced, group.world_size(), find);
  }
}

template <class Act>
void expect_state_error(const std::string& what, CommHook& hook, Findings& find, Act&& act) {
  const HookState before = hook.state();
  try {
    act();
    find(false, what + ": no error");
  } catch (const StateError&) {
    find(same_state(before, hook.state(), true), what + ": the error has changed something");
  }
}

void check_state(const ProcessGroup& group, const Candidate& candidate, Findings& find) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    find.at = std::string("saved state, ") + c10::toString(dtype);
    Bench whole(group, candidate, dtype);
    HookState saved;
    Tensors last;
    for (int64_t window = 0; window < 6; ++window) {
      last = whole.reduce(whole.mine(window));
      if (window == 2) saved = whole.hook->state();
    }
    Bench resumed(group, candidate, dtype);
    resumed.hook->load_state(saved);
    find(same_state(saved, resumed.hook->state(), true), "what is loaded is not what was saved");
    Tensors again;
    for (int64_t window = 3; window < 6; ++window) again = resumed.reduce(resumed.mine(window));
    find(same_bits(again, last), "a resumed run reduces to other bits");
    find(same_state(whole.hook->state(), resumed.hook->state(), true), "a resumed run keeps something else");

    HookState wrong = saved;
    wrong.type = "another";
    expect_state_error("another type", *resumed.hook, find, [&] { resumed.hook->load_state(wrong); });
    if (!candidate.feedback) continue;
    wrong = saved;
    wrong.ranks += 1;
    expect_state_error("another rank count", *resumed.hook, find, [&] { resumed.hook->load_state(wrong); });
    wrong = saved;
    wrong.parameters["stranger"] = wrong.parameters.begin()->second;
    expect_state_error("an unknown name", *resumed.hook, find, [&] { resumed.hook->load_state(wrong); });
    wrong = saved;
    wrong.parameters.begin()->second.erase("residual");
    expect_state_error("a missing residual", *resumed.hook, find, [&] { resumed.hook->load_state(wrong); });
    wrong = saved;
    at::Tensor& residual = wrong.parameters.rbegin()->second.at("residual");
    residual = residual.flatten();
    expect_state_error("another shape", *resumed.hook, find, [&] { resumed.hook->load_state(wrong); });
  }
}

void check_reports(const ProcessGroup& group, const Candidate& candidate, Findings& find) {
  find.at = "bytes and error";
  Bench bench(group, candidate);
  double bytes = 0, whole = 0;
  const Tensors mine = bench.mine(0);
  for (std::size_t index = 0; index < rebuilt_buckets.size(); ++index) {
    const Bucket bucket = bucket_of(bench.parameters, mine, rebuilt_buckets, index);
    bytes += static_cast<double>(bench.hook->bytes_sent(bucket));
    whole += static_cast<double>(bucket.gradients.nbytes());
  }
  find(bytes > 0 && bytes <= candidate.bytes * whole,
       "it sends " + std::to_string(bytes) + " bytes of " + std::to_string(whole));
  find(!bench.hook->relative_error().defined(), "an error that nobody has measured");
  bench.hook->measure_error();
  bench.run(mine, find);
  const HookState before = bench.hook->state();
  const Tensors second = bench.mine(1);
  bench.run(second, find);
  const at::Tensor error = bench.hook->relative_error();
  find(error.defined() && error.dim() == 0, "no error is reported");
  const double reported = error.item<double>();
  find(reported >= candidate.least_error && reported <= candidate.most_error,
       "it reports an error of " + std::to_string(reported));
  if (!candidate.feedback) return;
  // It is what has been left over, against what there was.
  const HookState after = bench.hook->state();
  double had = 0, lost = 0;
  for (const auto& [name, gradient] : bench.by_name(second)) {
    const at::Tensor earlier = residual_of(before, name), left = residual_of(after, name);
    const at::Tensor share = gradient.to(at::kDouble) / group.world_size();
    had += (earlier.defined() ? share + earlier : share).square().sum().item<double>();
    if (left.defined()) lost += left.square().sum().item<double>();
  }
  find(std::abs(reported - std::sqrt(lost / had)) < 1e-5, "the error is " + std::to_string(std::sqrt(lost / had)));
}

const std::vector<Check> checks{
    check_sums,           check_nothing_is_lost, check_non_finite, check_windows_that_do_not_count,
    check_zero_gradients, check_scale,           check_range,      check_state,
    check_reports};

Candidate power_sgd(const std::string& name, PowerSgdOptions options, double bytes) {
  return {.name = name,
          .make = [options] { return std::make_shared<PowerSgd>(options); },
          .feedback = true,
          .bytes = bytes,
          .least_error = 0.1,
          .most_error = 1};
}
Candidate top_k(const std::string& name, TopKOptions options, double bytes) {
  return {.name = name,
          .make = [options] { return std::make_shared<TopK>(options); },
          .feedback = true,
          .bytes = bytes,
          .least_error = 0.1,
          .most_error = 1};
}

std::vector<Candidate> candidates() {
  return {{.name = "all_reduce", .make = [] { return std::make_shared<AllReduce>(); }},
          {.name = "fp16_compress",
           .make = [] { return std::make_shared<Fp16Compress>(); },
           .rounding = tolerance_in_half,
           .bytes = 0.5,
           .least_error = 1e-5,
           .most_error = std::ldexp(1, -11)},
          {.name = "bf16_compress",
           .make = [] { return std::make_shared<Bf16Compress>(); },
           .rounding = tolerance_in_bfloat16,
           .bytes = 0.5,
           .least_error = 1e-4,
           .most_error = std::ldexp(1, -8)},
          power_sgd("power_sgd", {.rank = 2, .start_step = 0, .min_compression_rate = 1.5}, 0.35),
          power_sgd("power_sgd, cold", {.rank = 1, .start_step = 0, .warm_start = false}, 0.2),
          top_k("top_k", {.fraction = 0.05}, 0.15),
          top_k("top_k, large", {.fraction = 0.3}, 0.7)};
}

// ---- Hooks that are wrong ----

/// Sends every second gradient, and never the rest.
class Forgetful : public CommHook {
 public:
  std::string name() const override { return "forgetful"; }
  Future reduce(Bucket& bucket, double divisor) override {
    bucket.gradients.div_(divisor);
    bucket.gradients.slice(0, 0, std::nullopt, 2).zero_();
    return all_reduce(bucket.gradients);
  }
};

/// Adds up in float16, then divides.
class DividesAfter : public CommHook {
 public:
  std::string name() const override { return "divides after"; }
  Future reduce(Bucket& bucket, double divisor) override {
    const at::Tensor sent = bucket.gradients.to(at::kHalf), gradients = bucket.gradients;
    return all_reduce(sent)->then(
        [sent, gradients, divisor](c10::ivalue::Future& done) {
          done.value();
          gradients.copy_(sent).div_(divisor);
          return c10::IValue(gradients);
        },
        c10::TensorType::get());
  }
};

/// Keeps a residual as one would at first: by bucket number, and whatever the gradients are.
class ByBucket : public CommHook {
 public:
  std::string name() const override { return "by bucket"; }
  Future reduce(Bucket& bucket, double divisor) override {
    at::Tensor& residual = residuals_[bucket.index];
    bucket.gradients.div_(divisor);
    if (residual.defined() && residual.numel() == bucket.gradients.numel()) bucket.gradients.add_(residual);
    residual = bucket.gradients.clone();
    bucket.gradients.slice(0, windows_ % 2, std::nullopt, 2).zero_();
    residual.sub_(bucket.gradients);
    in_.resize(std::max(in_.size(), bucket.index + 1));
    in_[bucket.index] = bucket.parameters;
    if (bucket.last) ++windows_;
    return all_reduce(bucket.gradients);
  }
  void name_parameters(const std::vector<std::pair<std::string, at::Tensor>>& named) override { named_ = named; }
  HookState state() const override {
    HookState state = CommHook::state();
    for (const auto& [index, residual] : residuals_) {
      int64_t offset = 0;
      for (const at::Tensor& parameter : in_.at(index)) {
        for (const auto& [name, of] : named_) {
          if (!of.is_same(parameter)) continue;
          state.parameters[name]["residual"] =
              in_shape_of(parameter, residual.narrow(0, offset, parameter.numel()).clone());
        }
        offset += parameter.numel();
      }
    }
    return state;
  }

 private:
  std::map<std::size_t, at::Tensor> residuals_;
  std::vector<Tensors> in_;
  std::vector<std::pair<std::string, at::Tensor>> named_;
  int64_t windows_ = 0;
};

Findings findings_of(const ProcessGroup& group, const Candidate& candidate, const Check& check) {
  Findings find;
  try {
    check(group, candidate, find);
  } catch (const std::exception& error) {
    find(false, std::string("threw: ") + error.what());
  }
  return find;
}

const support::RankEntry conform("comm hooks", [](const ProcessGroup& group, RankChecks& check) {
  for (const Candidate& candidate : candidates()) {
    for (const Check& one : checks) {
      for (const std::string& failure : findings_of(group, candidate, one).failures) {
        check(false, candidate.name + ": " + failure);
      }
    }
  }
});

const support::RankEntry broken("comm hooks, broken", [](const ProcessGroup& group, RankChecks& check) {
  const Candidate forgetful{
      .name = "forgetful", .make = [] { return std::make_shared<Forgetful>(); }, .feedback = true};
  check(!findings_of(group, forgetful, check_sums).failures.empty(), "a hook without residuals passes (sums)");
  check(!findings_of(group, forgetful, check_nothing_is_lost).failures.empty(), "a hook without residuals passes");
  const Candidate after{
      .name = "after", .make = [] { return std::make_shared<DividesAfter>(); }, .rounding = tolerance_in_half};
  check(!findings_of(group, after, check_range).failures.empty(), "a hook that divides after the sum passes");
  check(findings_of(group, after, check_zero_gradients).failures.empty(), "it is wrong in another way too");
  const Candidate by_bucket{.name = "by bucket", .make = [] { return std::make_shared<ByBucket>(); }, .feedback = true};
  check(!findings_of(group, by_bucket, check_sums).failures.empty(), "residuals by bucket number pass");
  check(!findings_of(group, by_bucket, check_non_finite).failures.empty(), "a residual of NaN passes");
  check(findings_of(group, by_bucket, check_nothing_is_lost).failures.empty(), "it is wrong in another way too");
});

// ---- What single hooks promise ----

const support::RankEntry saturated("saturated", [](const ProcessGroup& group, RankChecks& check) {
  const auto sent = [&](Fp16Compress& hook, double value) {
    Bucket bucket{.gradients = at::full({8}, value), .last = true, .parameters = {at::zeros({8})}};
    return value_of(hook.reduce(bucket, group.world_size()))[0].item<double>();
  };
  Fp16Compress hook;
  hook.attach(group);
  check(std::abs(sent(hook, 60000) - 60000) < 60000 * tolerance_in_half && hook.saturated_buckets() == 0,
        "60000 does not fit");
  for (const double value : {65505.0, 1e6, -3e38}) {
    const int64_t before = hook.saturated_buckets();
    const double got = sent(hook, value);
    check(std::isfinite(got) && std::abs(got) > 60000 && std::abs(got) <= 65504 && (got < 0) == (value < 0),
          std::to_string(value) + " became " + std::to_string(got));
    check(hook.saturated_buckets() == before + 1, std::to_string(value) + " was not counted");
  }
  const int64_t before = hook.saturated_buckets();
  check(!std::isfinite(sent(hook, std::numeric_limits<double>::infinity())), "an inf was hidden");
  check(hook.saturated_buckets() == before, "an inf was counted as finite");
});

// A gradient of rank 1 comes back whole, wherever its elements lie; not so when rows and columns are mixed up.
const support::RankEntry low_rank("low rank", [](const ProcessGroup& group, RankChecks& check) {
  const auto outer = [](const std::vector<int64_t>& sizes) {
    return (at::randn({sizes[0], 1}) * at::randn({1, c10::multiply_integers(sizes) / sizes[0]})).view(sizes);
  };
  const Tensors parameters = parameters_of(at::kFloat);
  for (const double scale : {1.0, 1e-25, 1e22}) {  // whose squares float32 does not hold
    PowerSgd hook({.rank = 1, .start_step = 0});
    hook.attach(group);
    torch::manual_seed(1);
    for (int window = 0; window < 3; ++window) {
      Tensors gradients;
      for (const at::Tensor& parameter : parameters) {
        gradients.push_back(parameter.dim() < 2 ? at::randn(parameter.sizes()) : outer(parameter.sizes().vec()));
        gradients.back() *= scale;
      }
      const Tensors reduced = reduce(hook, parameters, gradients, rebuilt_buckets, group.world_size());
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const double error = support::relative_error({reduced[i]}, {gradients[i]});
        check(error < 1e-4 && finite({reduced[i]}), c10::str("p", i, " times ", scale, " is off by ", error));
      }
    }
  }
});

const support::RankEntry starts_later("start step", [](const ProcessGroup& group, RankChecks& check) {
  const std::vector<std::shared_ptr<CommHook>> hooks{
      std::make_shared<PowerSgd>(PowerSgdOptions{.rank = 1, .start_step = 2}),
      std::make_shared<TopK>(TopKOptions{.start_step = 2})};
  for (const auto& hook : hooks) {
    hook->attach(group);
    const Tensors parameters = parameters_of(at::kFloat);
    for (int64_t window = 0; window < 4; ++window) {
      const Tensors mine = gradients_of(parameters, group.rank(), window);
      const Bucket whole = bucket_of(parameters, mine, first_buckets, 0);
      const bool compressed = hook->bytes_sent(whole) < static_cast<int64_t>(whole.gradients.nbytes());
      const at::Tensor sum = over_ranks(group, mine[0]) / group.world_size();
      const double error =
          support::relative_error({reduce(*hook, parameters, mine, first_buckets, group.world_size())[0]}, {sum});
      check((error < 1e-6) == (window < 2),
            hook->name() + ": window " + std::to_string(window) + " is off by " + std::to_string(error));
      check(compressed == (window >= 2), hook->name() + ": bytes of window " + std::to_string(window));
    }
  }
});

// ---- Behind DistributedDataParallel ----

struct NetImpl : torch::nn::Module {
  NetImpl()
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 16, 3).padding(1)))),
        hidden(register_parameter("hidden", at::randn({24, 16}).mul_(0.2).t())),
        unused(register_parameter("unused", at::randn({16, 16}))),
        head(register_module("head", torch::nn::Linear(24, 8))) {
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor forward(const at::Tensor& x) {
    return head(torch::tanh(at::matmul(torch::tanh(conv(x)).mean({2, 3}), hidden)));
  }
  torch::nn::Conv2d conv;
  at::Tensor hidden, unused;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

const support::RankEntry behind_ddp("comm hooks behind ddp", [](const ProcessGroup& group, RankChecks& check) {
  for (const Candidate& candidate : candidates()) {
    Net net = support::seeded<Net>(7);
    Net alone = support::seeded<Net>(7);
    DdpOptions options{
        .bucket_bytes = 2048, .first_bucket_bytes = 512, .find_unused_parameters = true, .hook = candidate.make()};
    DistributedDataParallel ddp(*net, group, options);
    std::vector<std::pair<std::string, at::Tensor>> names;
    for (const auto& item : net->named_parameters()) names.emplace_back(item.key(), item.value());
    options.hook->name_parameters(names);
    Ledger ledger(group, candidate, *options.hook);
    Findings find;
    for (int64_t window = 0; window < 4; ++window) {
      find.at = "window " + std::to_string(window);
      constexpr int64_t micro_batches = 3;
      for (int64_t i = 0; i < micro_batches; ++i) {
        torch::manual_seed(100 * window + 10 * i + group.rank());
        const at::Tensor x = at::randn({2, 4, 5, 5}), y = at::randn({2, 8});
        torch::mse_loss(alone->forward(x), y).backward();
        const auto micro_step = ddp.micro_step(i + 1 == micro_batches);
        const at::Tensor loss = torch::mse_loss(net->forward(x), y);
        ddp.before_backward(loss);
        loss.backward();
        if (window == 1 && i == 0) {  // given up, and run again
          try {
            const auto given_up = ddp.micro_step();
            throw std::runtime_error("out of memory");
          } catch (const std::runtime_error&) {
          }
        }
      }
      ddp.finish();
      std::vector<std::pair<std::string, at::Tensor>> gradients;
      Tensors reduced;
      const auto ours = net->parameters();
      for (const auto& item : alone->named_parameters()) {
        if (item.key() == "unused") continue;
        gradients.emplace_back(item.key(), item.value().grad().clone());
        reduced.push_back(net->named_parameters()[item.key()].grad());
      }
      ledger.check(gradients, reduced, group.world_size(), find);
      net->zero_grad();
      alone->zero_grad();
    }
    check(ddp.reductions() > 4, "one bucket only");
    for (const std::string& failure : find.failures) check(false, candidate.name + ": " + failure);
  }
});

double loss_after_training(const ProcessGroup& group, std::shared_ptr<CommHook> hook, RankChecks& check) {
  torch::manual_seed(11);
  torch::nn::Linear net(24, 16);
  torch::manual_seed(5);
  const at::Tensor all_x = at::randn({256, 24}), all_y = at::matmul(all_x, at::randn({24, 16})) + at::randn({256, 16});
  const auto x = all_x.chunk(group.world_size())[group.rank()], y = all_y.chunk(group.world_size())[group.rank()];
  DistributedDataParallel ddp(*net, group, {.bucket_bytes = 512, .first_bucket_bytes = 64, .hook = std::move(hook)});
  for (int step = 0; step < 200; ++step) {
    const auto micro_step = ddp.micro_step();
    torch::mse_loss(net(x), y, at::Reduction::Sum).backward();
    ddp.finish();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.sub_(parameter.grad(), 1.2e-4 * group.world_size());
    net->zero_grad();
  }
  check(support::same_on_all_ranks(group, net->parameters()), ddp.hook().name() + ": ranks have different parameters");
  const at::NoGradGuard no_grad;
  return torch::mse_loss(net(all_x), all_y).item<double>();
}

const support::RankEntry least_squares("least squares", [](const ProcessGroup& group, RankChecks& check) {
  const double plain = loss_after_training(group, std::make_shared<AllReduce>(), check);
  const auto trains = [&](std::shared_ptr<CommHook> hook) {
    const std::string name = hook->name();
    const double loss = loss_after_training(group, std::move(hook), check);
    if (group.rank() == 0) std::cout << name << ": " << loss << ", plain: " << plain << std::endl;
    return loss <= plain * (1 + tolerance_of_convergence);
  };
  check(trains(std::make_shared<PowerSgd>(PowerSgdOptions{.rank = 2, .start_step = 10})),
        "PowerSgd does not get there");
  check(trains(std::make_shared<PowerSgd>(PowerSgdOptions{.rank = 1, .start_step = 0})), "PowerSgd of rank 1");
  check(trains(std::make_shared<TopK>(TopKOptions{.fraction = 0.1})), "TopK does not get there");
  // They owe it to the residual.
  check(!trains(std::make_shared<TopK>(TopKOptions{.fraction = 0.02, .error_feedback = false})),
        "TopK gets there without error feedback: the problem is too easy");
});

}  // namespace

TEST_CASE("communication hooks conform", "[multi][hooks]") {
  const int ranks = GENERATE(2, 3);
  support::check_ranks(ranks, "comm hooks");
}

TEST_CASE("the suite notices broken communication hooks", "[multi][hooks]") {
  support::check_ranks(4, "comm hooks, broken");
}

TEST_CASE("Fp16Compress: a gradient beyond its range is reported and never sent as inf", "[multi][hooks]") {
  const int ranks = GENERATE(2, 3, 4);
  support::check_ranks(ranks, "saturated");
}

TEST_CASE("PowerSgd: a gradient of low rank comes back whole in every memory format", "[multi][hooks]") {
  support::check_ranks(2, "low rank");
}

TEST_CASE("PowerSgd and TopK: windows before the start step are reduced whole", "[multi][hooks]") {
  support::check_ranks(2, "start step");
}

TEST_CASE(
    "communication hooks behind DistributedDataParallel: accumulation, unused parameters, memory formats, a given-up "
    "window",
    "[multi][hooks]") {
  const int ranks = GENERATE(2, 3);
  support::check_ranks(ranks, "comm hooks behind ddp");
}

TEST_CASE("PowerSgd and TopK reach the plain run's loss", "[multi][hooks]") {
  support::check_ranks(2, "least squares");
}

TEST_CASE("communication hooks: options", "[hooks]") {
  CHECK_THROWS_AS(PowerSgd({.rank = 0}), ConfigError);
  CHECK_THROWS_AS(PowerSgd({.start_step = -1}), ConfigError);
  CHECK_THROWS_AS(PowerSgd({.min_compression_rate = 0}), ConfigError);
  CHECK_THROWS_AS(TopK({.fraction = 0}), ConfigError);
  CHECK_THROWS_AS(TopK({.fraction = 1.5}), ConfigError);
  CHECK_THROWS_AS(TopK({.fraction = std::nan("")}), ConfigError);
  CHECK_THROWS_AS(TopK({.start_step = -1}), ConfigError);
}
