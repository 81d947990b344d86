// SPDX-License-Identifier: Apache-2.0
// Laws 5 and 10: a run that is stopped anywhere and goes on equals one that was not, bit for bit; and nothing
// half-written, or put together from two saves, is ever loaded.
#include "saturate/checkpoint.hpp"
#include "distributed_support.hpp"
#include "saturate/averaging/ema.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/tensor_source.hpp"
#include "saturate/distributed/ddp.hpp"
#include "saturate/distributed/sharded_optimizer.hpp"
#include "saturate/error.hpp"
#include "saturate/optim/adamw.hpp"
#include "saturate/optim/sgd.hpp"
#include "saturate/schedule/decay.hpp"
#include "saturate/schedule/reduce_lr_on_plateau.hpp"
#include "saturate/schedule/warmup.hpp"
#include "saturate/trainer.hpp"

#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <sys/stat.h>
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>

namespace st = saturate;
namespace ck = saturate::checkpoint;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
using support::RankChecks;
using support::dist::ProcessGroup;

namespace {

/// A folder that goes away again.
class Temporary {
 public:
  Temporary() : path_("/tmp/saturate-checkpoint-XXXXXX") { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  ~Temporary() { std::system(("rm -r " + path_).c_str()); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::string& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }

/// Draws random numbers, and keeps statistics.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(6, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        second(register_module("second", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(const at::Tensor& x) {
    return second(torch::dropout(torch::tanh(norm(first(x))), 0.25, is_training()));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};
TORCH_MODULE(Net);

struct StopAfter {
  int64_t window;
  void on_step(const st::StepEvent& event) const {
    if (event.state.window == window) event.state.stop = true;
  }
};
/// As a kill does: nothing is said to anybody.
struct ThrowAfter {
  int64_t window;
  void on_step(const st::StepEvent& event) const {
    if (event.state.window == window) throw std::runtime_error("killed");
  }
};

using Loader = st::data::PrefetchLoader<st::data::TensorSource<2>>;

/// 40 samples: 10 batches an epoch and rank of two, 5 windows of two batches; 10 with one process.
std::unique_ptr<Loader> loader_of(const ProcessGroup& group) {
  const auto [x, y] = support::classes(40, 5);
  return std::make_unique<Loader>(
      st::data::TensorSource(x, y),
      st::data::LoaderOptions{
          .batch_size = 2, .shuffle = true, .seed = 4, .rank = group.rank(), .ranks = group.world_size()});
}

constexpr int64_t epochs = 3;

struct Ended {
  std::vector<at::Tensor> bits;
  st::TrainerState state;
  bool failed = false;
  std::optional<st::TrainerState> resumed;
};

/// A new process, as far as it can be had in one: goes on from the folder, and fits until the end or an end.
template <class... Callbacks>
Ended run(const ProcessGroup& group, const std::string& folder, Callbacks... callbacks) {
  Net net = support::seeded<Net>(3);
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.05}), st::CrossEntropy{},
                      st::Ddp(group, {.bucket_bytes = 256, .first_bucket_bytes = 64}), st::Accumulate{2},
                      st::Fp16({.init_scale = 256, .growth_interval = 3}), st::ClipGradNorm{0.5},
                      st::WarmupCosine{.warmup = 3, .total = 40}, st::Ema({.decay = 0.9}), callbacks...);
  const auto loader = loader_of(group);
  torch::manual_seed(17 + group.rank());
  Ended ended;
  if (!folder.empty()) ended.resumed = st::resume(trainer, *loader, folder);
  try {
    const int64_t left = epochs - trainer.state().epoch;
    if (left > 0) trainer.fit(*loader, {.epochs = left});
  } catch (const std::runtime_error& error) {
    if (std::string(error.what()) != "killed") throw;
    ended.failed = true;
  }
  ended.state = trainer.state();
  ended.bits = support::clones(net->parameters());
  for (const at::Tensor& buffer : net->buffers()) ended.bits.push_back(buffer.clone());
  for (auto& [name, tensors] : trainer.optimizer().state().parameters) {
    for (auto& [key, tensor] : tensors) ended.bits.push_back(tensor.clone());
  }
  for (auto& [name, average] : trainer.template policy<st::Ema>().state().averages) ended.bits.push_back(average);
  const auto scaler = trainer.template policy<st::Fp16>().scaler().state();
  ended.bits.push_back(torch::tensor({scaler.scale, static_cast<double>(scaler.growth_tracker)}));
  ended.bits.push_back(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state());
  return ended;
}

bool same(const Ended& a, const Ended& b) {
  return support::same_bits(a.bits, b.bits) && a.state.step == b.state.step && a.state.window == b.state.window &&
         a.state.epoch == b.state.epoch && a.state.samples == b.state.samples;
}

st::Checkpoint every(int64_t windows, const std::string& folder, int64_t keep = 2) {
  return st::Checkpoint({.folder = folder, .every = windows, .keep = keep});
}

}  // namespace

TEST_CASE("checkpoint: a file gives back what was put in, bit for bit", "[checkpoint]") {
  const Temporary folder;
  ck::Values values;
  const at::Tensor large = torch::randn({1000, 10});
  values.tensors["a.weight"] = torch::randn({3, 4}, at::kBFloat16);
  values.tensors["a view/of.something"] = large.narrow(0, 1, 2).t();
  values.tensors["no dimension"] = torch::tensor(std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  values.tensors["no element"] = torch::zeros({0, 3}, at::kLong);
  values.integers["large"] = std::numeric_limits<int64_t>::max();
  values.numbers["third"] = 1.0 / 3;
  values.numbers["minus inf"] = -std::numeric_limits<double>::infinity();
  values.texts["text"] = "two\nlines, \"quoted\"";
  const std::string path = folder.path() + "/file";
  ck::write_file(path, "stamp-1", values);
  CHECK(content_of(path).size() < 8000);  // not the 40000 bytes behind the view
  CHECK(ck::stamp_of(path) == "stamp-1");
  const ck::Values again = ck::read_file(path);
  CHECK(again.tensors.size() == values.tensors.size());
  for (const auto& [name, tensor] : values.tensors) CHECK(support::same_bits(again.tensor(name), tensor));
  CHECK(again.integers == values.integers);
  CHECK(again.numbers == values.numbers);
  CHECK(again.texts == values.texts);
  CHECK_THROWS_AS(again.number("fourth"), st::StateError);
}

TEST_CASE("law 10: a torn or damaged file is refused by its name, wherever it is cut", "[law][checkpoint]") {
  const Temporary folder;
  ck::Values values;
  values.tensors["weight"] = torch::randn({20, 5});
  const std::string path = folder.path() + "/file";
  ck::write_file(path, "stamp", values);
  const std::string whole = content_of(path);
  const auto refused = MessageMatches(ContainsSubstring(path));
  for (std::size_t size = 0; size < whole.size(); size += size < 40 || size + 40 > whole.size() ? 1 : 97) {
    CAPTURE(size, whole.size());
    write(path, whole.substr(0, size));
    CHECK_THROWS_MATCHES(ck::read_file(path), st::DataError, refused);
  }
  for (std::size_t at = 0; at < whole.size(); at += 53) {
    CAPTURE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    write(path, damaged);
    CHECK_THROWS_MATCHES(ck::read_file(path), st::DataError, refused);
  }
  write(path, whole + "x");
  CHECK_THROWS_AS(ck::read_file(path), st::DataError);
  std::string newer = whole;
  newer.replace(newer.find(" 1 "), 3, " 2 ");
  write(path, newer);
  CHECK_THROWS_MATCHES(ck::read_file(path), st::DataError, MessageMatches(ContainsSubstring("reads version 1")));
  CHECK_THROWS_MATCHES(ck::read_file(folder.path() + "/none"), st::DataError,
                       MessageMatches(ContainsSubstring("No such file")));
  write(path, whole);
  CHECK(support::same_bits(ck::read_file(path).tensor("weight"), values.tensor("weight")));
}

TEST_CASE("law 5: killed after any window, and resumed, a run ends as one that was not", "[law][checkpoint]") {
  const ProcessGroup alone;
  const Ended whole = run(alone, "");
  CHECK(whole.state.window == 30);
  // 10, 20 and 30 end an epoch.
  for (const auto& [windows, at] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 7}, {1, 9}, {1, 10}, {1, 11}, {1, 20}, {1, 29}, {1, 30}, {4, 3}, {4, 13}, {4, 21}}) {
    CAPTURE(windows, at);
    const Temporary folder;
    CHECK(run(alone, folder.path(), every(windows, folder.path()), ThrowAfter{at}).failed);
    const Ended resumed = run(alone, folder.path(), every(windows, folder.path()));
    CHECK(same(resumed, whole));
    // The callback that kills comes after the one that saves, but for an epoch's last window.
    const int64_t saved = windows == 1 && at % 10 == 0 ? at - 1 : at / windows * windows;
    CHECK(resumed.resumed.has_value() == (saved > 0));
    if (resumed.resumed) CHECK(resumed.resumed->window == saved);
  }
}

TEST_CASE("law 5's test notices what is left out", "[law][checkpoint]") {
  const ProcessGroup alone;
  const Ended whole = run(alone, "");
  const Temporary folder;
  run(alone, folder.path(), every(1, folder.path()), ThrowAfter{7});
  // Random streams of another rank, as if they had not been saved.
  const ck::Folder files(folder.path(), alone);
  ck::Values own = ck::read_file(files.own_file(7));
  torch::manual_seed(1);
  own.tensors["random/cpu"] = at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state();
  ck::write_file(files.own_file(7), ck::stamp_of(files.run_file(7)), own);
  const Ended resumed = run(alone, folder.path());
  CHECK(resumed.resumed.has_value());
  CHECK_FALSE(same(resumed, whole));
}

TEST_CASE("law 5: stopped in the middle of an epoch, and when all is done", "[law][checkpoint]") {
  const ProcessGroup alone;
  const Ended whole = run(alone, "");
  const Temporary folder;
  run(alone, folder.path(), every(1000, folder.path()), StopAfter{13});
  const Ended resumed = run(alone, folder.path(), every(1000, folder.path()));
  CHECK(resumed.resumed->window == 13);
  CHECK(resumed.resumed->epoch == 1);
  CHECK(same(resumed, whole));
  const Ended again = run(alone, folder.path(), every(1000, folder.path()));
  CHECK(again.resumed->epoch == epochs);
  CHECK(same(again, whole));
}

TEST_CASE("Checkpoint: keeps the last ones, and takes away what a kill has left", "[checkpoint]") {
  const Temporary folder;
  const ProcessGroup alone;
  const ck::Folder files(folder.path(), alone);
  write(files.run_file(3) + ".tmp.77.0", "half");
  write(files.own_file(3) + ".tmp.77.1", "half");
  write(folder.path() + "/notes.txt", "kept");
  write(folder.path() + "/000000000001.rank-5-of-1", "another's");
  run(alone, folder.path(), every(4, folder.path(), 3));
  CHECK(files.complete() == std::vector<int64_t>{24, 28, 30});
  CHECK_FALSE(there(files.run_file(20)));
  CHECK_FALSE(there(files.own_file(20)));
  CHECK_FALSE(there(files.run_file(3) + ".tmp.77.0"));
  CHECK_FALSE(there(files.own_file(3) + ".tmp.77.1"));
  CHECK(there(folder.path() + "/notes.txt"));
  CHECK(there(folder.path() + "/000000000001.rank-5-of-1"));
}

TEST_CASE("law 10: the newest checkpoint that is whole is taken, a torn one is named", "[law][checkpoint]") {
  const Temporary folder;
  const ProcessGroup alone;
  const Ended whole = run(alone, "");
  run(alone, folder.path(), every(4, folder.path(), 3), ThrowAfter{13});
  const ck::Folder files(folder.path(), alone);
  REQUIRE(files.complete() == std::vector<int64_t>{4, 8, 12});
  SECTION("a file is missing") {
    ::unlink(files.run_file(12).c_str());
    CHECK(files.complete() == std::vector<int64_t>{4, 8});
  }
  SECTION("a file is torn") {
    const std::string content = content_of(files.run_file(12));
    write(files.run_file(12), content.substr(0, content.size() / 2));
    const support::LogCapture log;
    CHECK(files.newest()->window == 8);
    CHECK(log.contains(files.run_file(12)));
  }
  SECTION("the files are of two saves") {
    ck::write_file(files.own_file(12), "another", ck::read_file(files.own_file(12)));
    CHECK(files.complete() == std::vector<int64_t>{4, 8});
  }
  const Ended resumed = run(alone, folder.path());
  CHECK(resumed.resumed->window == 8);
  CHECK(same(resumed, whole));
  for (const int64_t window : {4, 8, 12})
    write(files.own_file(window), content_of(files.own_file(window)).substr(0, 99));
  CHECK_THROWS_MATCHES(files.newest(), st::DataError, MessageMatches(ContainsSubstring(files.own_file(4))));
}

TEST_CASE("Checkpoint: what does not fit is refused before anything has changed", "[checkpoint]") {
  const Temporary folder;
  const ProcessGroup alone;
  run(alone, folder.path(), every(4, folder.path()), ThrowAfter{9});
  // Training anew over the checkpoints of another run.
  CHECK_THROWS_MATCHES(run(alone, "", every(4, folder.path())), st::StateError,
                       MessageMatches(ContainsSubstring("resume")));
  const auto loader = loader_of(alone);
  {
    support::Mlp net = support::seeded<support::Mlp>(1);
    st::Trainer trainer(net, st::optim::AdamW(net->parameters()), st::CrossEntropy{});
    const auto before = support::clones(net->parameters());
    CHECK_THROWS_AS(st::resume(trainer, *loader, folder.path()), st::StateError);
    CHECK(support::same_bits(support::clones(net->parameters()), before));
    CHECK(loader->state().position == 0);
  }
  {
    Net net = support::seeded<Net>(1);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{});
    const auto before = support::clones(net->parameters());
    CHECK_THROWS_AS(st::resume(trainer, *loader, folder.path()), st::StateError);
    CHECK(support::same_bits(support::clones(net->parameters()), before));
    CHECK(trainer.state().window == 0);
  }
  {
    Net net = support::seeded<Net>(1);
    const Temporary empty;
    st::Trainer trainer(net, torch::optim::SGD(net->parameters(), 0.1), st::CrossEntropy{}, every(4, empty.path()));
    CHECK_FALSE(st::resume(trainer, *loader, empty.path()).has_value());
    CHECK_THROWS_AS(trainer.fit(*loader), st::StateError);
    CHECK(trainer.state().window == 0);
  }
  const auto made = [](st::CheckpointOptions options) { st::Checkpoint(std::move(options)).validate(); };
  CHECK_THROWS_AS(made({}), st::ConfigError);
  CHECK_THROWS_AS(made({.folder = "x", .every = 0}), st::ConfigError);
  CHECK_THROWS_AS(made({.folder = "x", .keep = 0}), st::ConfigError);
  CHECK_THROWS_MATCHES(ck::Folder("/proc/nothing/here", alone), st::ConfigError,
                       MessageMatches(ContainsSubstring("/proc/nothing")));
}

TEST_CASE("resume: a checkpoint of another number of ranks is an error, not a new run", "[law][checkpoint]") {
  const Temporary folder;
  const ck::Folder checkpoints(folder.path(), ProcessGroup());
  CHECK_FALSE(checkpoints.newest());
  write(folder.path() + "/notes-of-mine", "no checkpoint");
  CHECK_FALSE(checkpoints.newest());
  write(folder.path() + "/000000000004.rank-0-of-2", "whatever");
  CHECK_THROWS_MATCHES(checkpoints.newest(), st::StateError,
                       MessageMatches(ContainsSubstring("another number of ranks (000000000004.rank-0-of-2)")));
  // Nor does a run that has not asked for it write its own beside it.
  Net net;
  st::Checkpoint checkpoint({.folder = folder.path()});
  st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.1}), st::CrossEntropy{});
  std::vector<support::Batch> batches{support::classes(8, 1)};
  CHECK_THROWS_MATCHES(checkpoint.bind(trainer, batches), st::StateError,
                       MessageMatches(ContainsSubstring("another number of ranks")));
}

TEST_CASE("Checkpoint: never writes beside checkpoints of another number of ranks", "[checkpoint]") {
  const Temporary folder;
  const ProcessGroup alone;
  run(alone, folder.path(), every(4, folder.path()), ThrowAfter{9});
  const ck::Folder files(folder.path(), alone);
  write(folder.path() + "/000000000012.rank-0-of-2", "whatever");
  write(files.run_file(12), "what both share");
  CHECK_THROWS_MATCHES(run(alone, folder.path(), every(4, folder.path())), st::StateError,
                       MessageMatches(ContainsSubstring("another number of ranks")));
  CHECK(files.complete() == std::vector<int64_t>{4, 8});
  CHECK(content_of(files.run_file(12)) == "what both share");
}

TEST_CASE("law 5: an evaluation of the window that was saved is not missed", "[law][checkpoint]") {
  const ProcessGroup alone;
  const Temporary folder;
  const std::vector<support::Batch> validation(1, support::classes(8, 2));
  const auto fit = [&](bool resumes, auto... policies) {
    Net net = support::seeded<Net>(3);
    st::Trainer trainer(net, st::optim::SGD(net->parameters(), {.lr = 0.5}), st::CrossEntropy{}, policies...);
    const auto loader = loader_of(alone);
    torch::manual_seed(17);
    if (resumes) CHECK(st::resume(trainer, *loader, folder.path())->window == 4);
    CHECK_FALSE((resumes && trainer.state().epoch > 0));
    try {
      trainer.fit(*loader, validation, {.evaluate_every = 2});
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()) == "killed");
    }
    auto bits = support::clones(net->parameters());
    const st::PlateauState plateau = trainer.template policy<st::ReduceLrOnPlateau>().state();
    CHECK(plateau.observations == trainer.state().window / 2);
    bits.push_back(torch::tensor(plateau.factor, at::kDouble));
    return bits;
  };
  // The loss falls: every evaluation but the first halves the rate.
  const st::ReduceLrOnPlateau plateau({.mode = st::PlateauMode::max, .reduce_by = 0.5, .patience = 0});
  const auto whole = fit(false, plateau);
  CHECK(whole.back().item<double>() < 0.01);
  fit(false, plateau, every(2, folder.path()), ThrowAfter{5});
  CHECK(support::same_bits(fit(true, plateau), whole));
  // Wherever Checkpoint stands.
  std::system(("rm " + folder.path() + "/*").c_str());
  fit(false, every(2, folder.path()), plateau, ThrowAfter{5});
  CHECK(support::same_bits(fit(true, plateau), whole));
}

TEST_CASE("Checkpoint: batches that do not know their place are saved at ends of epochs", "[checkpoint]") {
  const Temporary folder;
  const ProcessGroup alone;
  const std::vector<support::Batch> batches(10, support::classes(4, 1));
  const auto fit = [&](int64_t count, auto... callbacks) {
    support::Mlp net = support::seeded<support::Mlp>(1);
    st::Trainer trainer(net, st::optim::AdamW(net->parameters()), st::CrossEntropy{}, callbacks...);
    st::resume(trainer, batches, folder.path());
    if (trainer.state().epoch < count) trainer.fit(batches, {.epochs = count - trainer.state().epoch});
    return support::clones(net->parameters());
  };
  CHECK_THROWS(fit(3, every(4, folder.path()), ThrowAfter{16}));
  CHECK(ck::Folder(folder.path(), alone).complete() == std::vector<int64_t>{10});
  const auto resumed = fit(3);
  std::system(("rm " + folder.path() + "/*").c_str());
  CHECK(support::same_bits(resumed, fit(3)));
}

namespace {

const support::RankEntry over_ranks("checkpoint", [](const ProcessGroup& group, RankChecks& check) {
  const std::string folder = std::getenv("SATURATE_TEST_FOLDER");
  const Ended whole = run(group, "");
  check(whole.state.window == 15, "the run has " + std::to_string(whole.state.window) + " windows");
  // Every rank is killed at once; then each has its files on a disk of its own.
  const std::string mine = folder + "/disk-" + std::to_string(group.rank());
  check(run(group, mine, every(3, mine), ThrowAfter{7}).failed, "nothing failed");
  const ck::Folder files(mine, group);
  check(files.complete() == std::vector<int64_t>{3, 6}, "not the windows 3 and 6");
  check(there(files.run_file(6)) == (group.rank() == 0), "what all share is not rank 0's alone");
  check(there(files.own_file(6)), "no file of its own");
  const Ended resumed = run(group, mine, every(3, mine));
  check(resumed.resumed && resumed.resumed->window == 6, "not resumed at window 6");
  check(same(resumed, whole), "other bits after resuming");
  check(support::same_on_all_ranks(group, {resumed.bits.begin(), resumed.bits.begin() + 6}), "ranks differ");

  // The newest is there on rank 0 only.
  const std::vector<int64_t> there_now = files.complete();
  check(there_now == std::vector<int64_t>{12, 15}, "not the windows 12 and 15");
  if (group.rank() == 1) ::unlink(files.own_file(15).c_str());
  check(files.complete() == std::vector<int64_t>{12}, "a checkpoint that rank 1 lacks counts");
  check(same(run(group, mine), whole), "other bits after resuming from the older one");
  // Torn on rank 1: both go back, and rank 0 names the file too.
  if (group.rank() == 1) write(files.own_file(12), content_of(files.own_file(12)).substr(0, 100));
  try {
    files.newest();
    check(false, "no error though nothing is left");
  } catch (const st::DataError& error) {
    check(std::string(error.what()).find("disk-1/000000000012.rank-1-of-2: it is torn") != std::string::npos,
          error.what());
  }
  // A rank that cannot write is an error on all of them, and old checkpoints stay.
  const std::string bad = group.rank() == 1 ? "/proc/nothing" : folder + "/fine";
  try {
    ck::Folder(bad, group);
    check(false, "no error");
  } catch (const st::Error& error) {
    check(std::string(error.what()).find("/proc/nothing") != std::string::npos, error.what());
  }
});

const support::RankEntry other_model("checkpoint, other model", [](const ProcessGroup& group, RankChecks& check) {
  const std::string folder = std::getenv("SATURATE_TEST_FOLDER");
  run(group, folder, every(3, folder), ThrowAfter{7});
  // Loader seeds differ on rank 1 only: both are told.
  Net net = support::seeded<Net>(3);
  st::Trainer trainer(net, st::optim::AdamW(net->parameters(), {.lr = 0.05}), st::CrossEntropy{}, st::Ddp(group));
  const auto [x, y] = support::classes(40, 5);
  Loader loader(st::data::TensorSource(x, y), {.batch_size = 2,
                                               .shuffle = true,
                                               .seed = group.rank() == 1 ? 9u : 4u,
                                               .rank = group.rank(),
                                               .ranks = group.world_size()});
  try {
    st::resume(trainer, loader, folder);
    check(false, "no error");
  } catch (const st::Error& error) {
    check(std::string(error.what()).find("seed") != std::string::npos, error.what());
  }
});

// An optimizer whose ranks load together: none waits there for one that has failed before.
const support::RankEntry sharded("checkpoint, sharded", [](const ProcessGroup& group, RankChecks& check) {
  const std::string folder = std::getenv("SATURATE_TEST_FOLDER");
  const auto with = [&](unsigned seed, auto use) {
    Net net = support::seeded<Net>(3);
    st::distributed::ShardedOptimizer optimizer(group, net->parameters(), [](std::vector<at::Tensor> params) {
      return st::optim::AdamW(std::move(params), {.lr = 0.05});
    });
    st::Trainer trainer(net, std::move(optimizer), st::CrossEntropy{}, st::Ddp(group), every(3, folder));
    const auto [x, y] = support::classes(40, 5);
    Loader loader(st::data::TensorSource(x, y),
                  {.batch_size = 2, .shuffle = true, .seed = seed, .rank = group.rank(), .ranks = group.world_size()});
    use(trainer, loader);
    return support::clones(net->parameters());
  };
  const auto trained = with(4, [](auto& trainer, auto& loader) { trainer.fit(loader); });
  const auto resumed = with(4, [&](auto& trainer, auto& loader) {
    check(st::resume(trainer, loader, folder).has_value(), "nothing to resume");
  });
  check(support::same_bits(resumed, trained), "sharded: other parameters after resuming");
  for (const int failing : {0, 1}) {
    const auto begin = std::chrono::steady_clock::now();
    with(group.rank() == failing ? 9 : 4, [&](auto& trainer, auto& loader) {
      const auto before = support::clones(trainer.model()->parameters());
      try {
        st::resume(trainer, loader, folder);
        check(false, "no error");
      } catch (const st::Error& error) {
        check(std::string(error.what()).find("seed") != std::string::npos, error.what());
      }
      check(support::same_bits(support::clones(trainer.model()->parameters()), before), "parameters have changed");
    });
    check(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30), "an error only after the timeout");
  }
});

}  // namespace

TEST_CASE("law 5 over ranks: each with a disk of its own", "[law][checkpoint][multi]") {
  const Temporary folder;
  support::check_ranks(2, "checkpoint", {.environment = {{"SATURATE_TEST_FOLDER", folder.path()}}});
}

TEST_CASE("resume: what does not fit on one rank is an error on every rank", "[checkpoint][multi]") {
  const Temporary folder;
  support::check_ranks(2, "checkpoint, other model", {.environment = {{"SATURATE_TEST_FOLDER", folder.path()}}});
}

TEST_CASE("resume: what fails on one rank is no wait for the others' ShardedOptimizer", "[checkpoint][multi]") {
  const Temporary folder;
  support::check_ranks(2, "checkpoint, sharded", {.environment = {{"SATURATE_TEST_FOLDER", folder.path()}}});
}
