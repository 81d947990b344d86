// SPDX-License-Identifier: Apache-2.0
#include "saturate/audit/report.hpp"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "fake.hpp"
#include "saturate/error.hpp"
#include "saturate/schedule/decay.hpp"
#include "saturate/schedule/warmup.hpp"

namespace saturate::audit {
namespace {

// 24 blocks forward, then backward, then the update.
MemoryReport sample_memory() {
  MemoryReport memory;
  memory.timeline = {.devices = {"cpu"},
                     .phases = {"before", "forward", "backward", "update"},
                     .marks = {"", "conv1", "hidden"},
                     .samples = {},
                     .seconds = 0.0349};
  MemoryByKind now;
  now[MemoryKind::parameters] = 1700 << 10;
  now[MemoryKind::optimizer_state] = 3400 << 10;
  now[MemoryKind::inputs] = 400 << 10;
  const auto add = [&](int64_t phase, MemoryKind kind, int64_t kib) {
    now[kind] += kib << 10;
    const auto count = static_cast<double>(memory.timeline.samples.size());
    memory.timeline.samples.push_back({count * 0.0349 / 80, 0, phase, phase == 1 ? 1 : 0, now});
  };
  add(0, MemoryKind::workspace, 0);
  const MemoryByKind before = now;
  for (int i = 0; i < 24; ++i) add(1, MemoryKind::activations, 700 + 40 * (i % 5));
  const MemoryByKind at_peak = now;
  for (int i = 0; i < 24; ++i) {
    add(2, MemoryKind::activations, -(700 + 40 * (i % 5)));
    add(2, MemoryKind::gradients, 70);
  }
  const MemoryByKind end = now;
  add(3, MemoryKind::workspace, 600);
  add(3, MemoryKind::workspace, -600);
  add(3, MemoryKind::gradients, -24 * 70);
  memory.devices = {{"cpu", before, now, at_peak, at_peak, 80, std::nullopt}};
  memory.phases = {{"before", 0, before.total(), before},
                   {"forward", 0.011, at_peak.total(), at_peak},
                   {"backward", 0.021, at_peak.total(), end},
                   {"update", 0.0029, end.total() + (600 << 10), now}};
  memory.modules = {{"conv1", 9 << 20, 9 << 20, 9 << 20}, {"hidden", 3 << 20, 3 << 20, 3 << 20}};
  return memory;
}

// As a small CNN on two cores might come out.
AuditReport sample_report() {
  fake::World world;
  world.samples_per_second = 3712;
  world.noise = 0.05;
  world.batch = 128;
  world.effects["kept-pages"] = {.speed = 1.12};
  world.effects["fused"] = {.speed = 1.09, .loss_factor = 1.001};
  world.effects["channels-last"] = {.speed = 1.21, .loss_factor = 0.999};
  world.effects["prefetch"] = {.speed = 1.01};
  world.effects["accumulate"] = {.speed = 0.97};
  world.effects["bf16"] = {.speed = 0.11, .loss_factor = 1.01};
  world.effects["threads"] = {.speed = 0.68};
  world.effects["big-lr"] = {.speed = 1.3, .loss_factor = 3};
  world.effects["recompute every(4)"] = {.speed = 0.985, .memory = 0.77};
  world.effects["recompute every(3)"] = {.speed = 0.88, .memory = 0.70};
  world.effects["recompute every(2)"] = {.speed = 0.9, .memory = 0.54};
  world.effects["recompute all()"] = {.speed = 0.8, .memory = 0.12};
  world.effects["offload"] = {.throws = "offload: there is no device to offload from"};
  world.effects["graph"] = {.throws = "CUDA graphs need a CUDA device; this machine has none"};
  Workload workload = fake::workload(world);
  workload.name = "Fashion-MNIST CNN";
  workload.description = "Two convolutions and two linear layers, batch 128, AdamW, 60,000 images of 28 × 28 pixels";
  workload.batch_sizes = {32, 64, 128, 256, 512};
  workload.make_with_batch_size = [&](int64_t batch) {
    world.samples_per_second = 3712 * 1.6 * static_cast<double>(batch) / (static_cast<double>(batch) + 76);
    return std::make_unique<fake::FakeRunner>(world, TacticSet{}, batch);
  };
  workload.loader_ceiling = [&] { return LoaderCeiling{426000, 60000}; };
  workload.memory_tactics = [] {
    std::vector<Tactic> ways;
    for (const char* call : {"every(4)", "every(3)", "every(2)", "all()"}) {
      ways.push_back(fake::tactic(std::string("recompute ") + call));
      ways.back().title = ways.back().id;
      ways.back().how_to_apply = std::string("st::Recompute::") + call;
    }
    ways.push_back(fake::tactic("offload"));
    return ways;
  };
  workload.step_memory = sample_memory;
  const MakeRunner make = workload.make;
  workload.make = [&, make](const TacticSet& set) {
    world.samples_per_second = 3712;
    return make(set);
  };
  std::vector<Tactic> tactics = {
      {"kept-pages", "Kept pages", "saturate::host_memory::keep_pages();",
       "Memory that was freed stays with the process, so the kernel does not hand it out page by page in every step."},
      {"fused", "Fused optimizer", "st::optim::AdamW(net->parameters(), {.lr = 1e-3})",
       "One pass over the weights updates everything, instead of a dozen small operations."},
      {"channels-last", "Channels last", "st::ChannelsLast{}",
       "Images are laid out so that the convolutions read memory in order."},
      {"prefetch", "Prefetching loader", "st::PrefetchLoader(source, {.workers = 1})",
       "A thread prepares the next batches while the current one trains."},
      {"accumulate", "Accumulation, 4 micro-batches", "st::Accumulate{4}",
       "A large batch is trained in smaller pieces: less memory, the same gradient."},
      {"bf16", "BF16 autocast", "st::Bf16{}", "Matrix products run in 16-bit numbers where the hardware has them.",
       false},
      {"threads", "One thread", "at::set_num_threads(1)", "LibTorch computes with one thread.", true, "1", "threads"},
      {"big-lr", "Ten times the learning rate <lr & more>", "{.lr = 1e-2}", "A \"tactic\" that learns something else.",
       false},
      {"graph", "CUDA graph", "st::CudaGraph{}", "The step is recorded once and replayed."}};
  AuditOptions options = fake::options(world);
  options.rules.hopeless_ratio = 0.6;
  AuditReport report = Audit(workload, tactics, options).run();
  report.machine = {"AMD EPYC 7763 64-Core Processor",
                    2,
                    {"avx2", "fma", "f16c"},
                    int64_t{8} << 30,
                    "Linux 6.1.0-18-amd64",
                    "2.11.0",
                    2,
                    ""};
  return report;
}

// POSIX calls: libtorch.so exports a std::filesystem of another libstdc++, whose remove_all crashes.
class Folder {
 public:
  Folder() : path_("/tmp/saturate_audit_XXXXXX") { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
  ~Folder() {
    ::nftw(
        path_.c_str(), [](const char* at, const struct stat*, int, struct FTW*) { return std::remove(at); }, 8,
        FTW_DEPTH | FTW_PHYS);
  }
  std::string operator/(const char* name) const { return path_ + "/" + name; }
  int files() const {
    int count = -2;  // . and ..
    DIR* folder = ::opendir(path_.c_str());
    while (::readdir(folder) != nullptr) ++count;
    ::closedir(folder);
    return count;
  }

 private:
  std::string path_;
};

std::string read(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

void write(const std::string& path, const std::string& content) { std::ofstream(path, std::ios::binary) << content; }

// Every tag is closed by its own name in the right order, attributes are quoted, and no stray < or & is left.
std::string first_fault(const std::string& html) {
  std::vector<std::string> open;
  for (std::size_t at = html.find("<html"); at < html.size();) {
    if (html[at] == '&') {
      const auto end = html.find(';', at);
      if (end == std::string::npos || end - at > 6) return "stray & at " + html.substr(at, 40);
    }
    if (html[at] != '<') {
      ++at;
      continue;
    }
    const auto end = html.find('>', at);
    if (end == std::string::npos) return "unclosed tag";
    const std::string tag = html.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.find('<') != std::string::npos || std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "tag " + tag;
    if (tag.front() == '/') {
      if (open.empty() || "/" + open.back() != tag) return tag + " closes " + (open.empty() ? "nothing" : open.back());
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end + 1;
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

TEST_CASE("audit.json loads back bit for bit, and its rounds give the same verdicts") {
  const Folder folder;
  AuditReport report = sample_report();
  report.tactics[0].what = "odd numbers: \"quotes\", \n new line, ü";
  report.tactics[1].raw.rounds[0].baseline.timed.step_seconds = {0.1, 1.0 / 3, -0.0, 5e-324, 1.7976931348623157e308};
  report.tactics[2].raw.rounds[0].baseline.timed.data_wait_seconds = std::numeric_limits<double>::infinity();
  report.batch_curve[1].rounds[0].loss_sum = std::nan("");
  report.batch_curve[0].lr_advice = "advice";
  report.save(folder / "audit.json");
  AuditReport loaded = AuditReport::load(folder / "audit.json");
  CHECK(loaded.to_json() == report.to_json());
  CHECK(loaded.tactics[1].raw.rounds[0].baseline.timed.step_seconds ==
        report.tactics[1].raw.rounds[0].baseline.timed.step_seconds);
  CHECK(std::signbit(loaded.tactics[1].raw.rounds[0].baseline.timed.step_seconds[2]));
  CHECK(std::isnan(loaded.batch_curve[1].rounds[0].loss_sum));
  CHECK(loaded.batch_curve[0].lr_advice == "advice");
  CHECK(loaded.machine == report.machine);
  CHECK(loaded.check().empty());
  const std::string before = loaded.to_json();
  loaded.rejudge();
  CHECK(loaded.to_json() == before);
  CHECK(folder.files() == 1);  // no temporary file is left
}

TEST_CASE("a schedule is plotted where its curve is given, and goes through audit.json") {
  AuditReport report = sample_report();
  CHECK(report.to_json().find("lr_curve") == std::string::npos);
  CHECK(report.to_html().find("The learning rate") == std::string::npos);
  CHECK_FALSE(AuditReport::from_json(report.to_json()).lr_curve.has_value());  // as older files are
  const Warmup schedule{100, CosineAnnealingLr{.total = 900}};
  report.lr_curve = {"Warm-up, then half a <cosine>", schedule_curve(schedule, 1e-3, 1001, 51)};
  const AuditReport loaded = AuditReport::from_json(report.to_json());
  REQUIRE(loaded.lr_curve.has_value());
  CHECK(loaded.lr_curve->title == report.lr_curve->title);
  REQUIRE(loaded.lr_curve->points.size() == 51);
  CHECK(loaded.lr_curve->points[7].step == 140);
  CHECK(loaded.lr_curve->points[7].lr == report.lr_curve->points[7].lr);
  CHECK(loaded.to_json() == report.to_json());

  const std::string html = report.to_html();
  CHECK(first_fault(html) == "");
  CHECK(html.find("Warm-up, then half a &lt;cosine&gt;") != std::string::npos);
  CHECK(html.find("step 1,000") != std::string::npos);
  CHECK(html.find("nan%") == std::string::npos);
  // Nothing to draw: no section.
  for (const LrCurve& curve : {LrCurve{"empty", {}}, LrCurve{"one", {{0, 1}}}, LrCurve{"same", {{3, 1}, {3, 2}}},
                               LrCurve{"nan", {{0, std::nan("")}, {1, std::nan("")}}}}) {
    report.lr_curve = curve;
    CHECK(report.to_html().find("The learning rate") == std::string::npos);
  }
  std::string broken = loaded.to_json();
  broken.replace(broken.find("\"lr_curve\""), 10, "\"lr_curve\": {\"title\": 3}, \"x\"");
  CHECK_THROWS_AS(AuditReport::from_json(broken), DataError);
}

TEST_CASE("the memory curve is in the file, the table and the page, and files without one still load") {
  AuditReport report = sample_report();
  REQUIRE(report.memory_curve.size() == 5);
  report.memory_curve[0].label = "recompute <every>(4)";
  const AuditReport loaded = AuditReport::from_json(report.to_json());
  CHECK(loaded.to_json() == report.to_json());
  REQUIRE(loaded.memory_curve.size() == 5);
  CHECK(loaded.memory_curve[1].label == "recompute every(3)");
  CHECK(loaded.memory_curve[1].rounds.size() == 3);
  CHECK(loaded.memory_curve[1].memory() == report.memory_curve[1].memory());
  CHECK(loaded.memory_curve[1].speed() == report.memory_curve[1].speed());
  CHECK(loaded.memory_curve[4].error == report.memory_curve[4].error);
  CHECK(report.check().empty());

  std::ostringstream out;
  report.print_table(out);
  CHECK(out.str().find(to_string(report.memory_curve[3]) + ", peak 12.0 MiB of 100 MiB") != std::string::npos);
  CHECK(to_string(report.memory_curve[3]).starts_with("recompute all(): 0.12x memory at 0."));
  CHECK(out.str().find("Tactic offload: offload: there is no device") != std::string::npos);
  CHECK(out.str().find("If memory is what limits, recompute all() frees 88 %") != std::string::npos);

  const std::string html = report.to_html();
  CHECK(first_fault(html) == "");
  CHECK(html.find("time of a step over its peak memory") != std::string::npos);
  for (const char* label : {">every(3)<", ">every(2)<", ">all()<", ">plain<"})
    CHECK(html.find(label) != std::string::npos);
  CHECK(html.find("recompute &lt;every&gt;(4)") != std::string::npos);
  CHECK(html.find("st::Recompute::all()") != std::string::npos);
  CHECK(html.find("nan%") == std::string::npos);

  AuditReport old = report;
  old.memory_curve.clear();
  old.rejudge();
  CHECK(old.to_json().find("\"memory_curve\"") == std::string::npos);
  CHECK(old.to_json().find("\"memory_note\"") == std::string::npos);
  CHECK(AuditReport::from_json(old.to_json()).memory_curve.empty());
  CHECK(AuditReport::from_json(old.to_json()).check().empty());
  CHECK(old.to_html().find("Memory against time") == std::string::npos);
  CHECK(old.recommendation.text.find("memory") == std::string::npos);

  old.memory_note = "not measured: the model marks no <parts>";
  CHECK(AuditReport::from_json(old.to_json()).memory_note == old.memory_note);
  CHECK(old.to_html().find("marks no &lt;parts&gt;") != std::string::npos);
  CHECK(old.to_html().find("peak memory of a step") == std::string::npos);
  std::ostringstream noted;
  old.print_table(noted);
  CHECK(noted.str().find("memory against time: not measured: the model marks no <parts>") != std::string::npos);

  std::string broken = report.to_json();
  broken.replace(broken.find("\"label\""), 7, "\"table\"");
  CHECK_THROWS_AS(AuditReport::from_json(broken), DataError);
  report.memory_curve[2].rounds[0].baseline.timed.seconds = 0;  // a file may hold it
  CHECK(first_fault(report.to_html()) == "");
  report.memory_curve.resize(1);
  report.memory_curve[0].rounds.clear();
  CHECK(report.to_html().find("time of a step over") == std::string::npos);
}

TEST_CASE("the memory of one step is in the file and on the page, with its phases; files without it still load") {
  AuditReport report = sample_report();
  report.step_memory->phases[1].name = "for<ward>";
  AuditReport loaded = AuditReport::from_json(report.to_json());
  REQUIRE(loaded.step_memory);
  CHECK(*loaded.step_memory == *report.step_memory);
  CHECK(loaded.to_json() == report.to_json());

  const std::string html = report.to_html();
  CHECK(first_fault(html) == "");
  CHECK(html.find("One step of the unchanged workload") != std::string::npos);
  CHECK(html.find("memory of one step, by what it was for") != std::string::npos);
  CHECK(html.find("for&lt;ward&gt;") != std::string::npos);
  CHECK(html.find("MiB activations, 3.3 MiB optimizer state") != std::string::npos);
  CHECK(html.find("the most is kept by conv1 (9.0 MiB) and hidden (3.0 MiB)") != std::string::npos);

  std::string broken = report.to_json();
  const auto at = broken.find("\"samples\"", broken.find("\"step_memory\""));
  broken.replace(at, 9, "\"sample\"");
  try {
    AuditReport::from_json(broken);
    FAIL("loaded");
  } catch (const DataError& e) {
    CHECK(std::string(e.what()).find("'step_memory'") != std::string::npos);
  }

  report.step_memory.reset();
  CHECK(report.to_json().find("\"step_memory") == std::string::npos);
  CHECK_FALSE(AuditReport::from_json(report.to_json()).step_memory);
  CHECK(report.to_html().find("One step of") == std::string::npos);
  report.step_memory_error = "the profiler <runs>";
  CHECK(AuditReport::from_json(report.to_json()).step_memory_error == report.step_memory_error);
  CHECK(report.to_html().find("could not be measured: the profiler &lt;runs&gt;") != std::string::npos);
}

TEST_CASE("rounds that were tampered with no longer give the stored verdict") {
  AuditReport report = AuditReport::from_json(sample_report().to_json());
  REQUIRE(report.find("channels-last")->verdict.kept());
  SECTION("a faster tactic made slow") {
    for (AbRound& round : report.tactics[2].raw.rounds) round.candidate.timed.seconds *= 2;
  }
  SECTION("a loss made worse") {
    for (AbRound& round : report.tactics[2].raw.rounds) round.candidate.timed.loss_sum *= 3;
  }
  SECTION("rounds left out") { report.tactics[2].raw.rounds.resize(2); }
  REQUIRE(report.check().size() >= 1);
  CHECK(report.check()[0].find("channels-last: says \"kept") == 0);
  report.rejudge();
  CHECK_FALSE(report.find("channels-last")->verdict.kept());
}

TEST_CASE("a verdict or a recommendation that was rewritten is found") {
  AuditReport report = sample_report();
  for (TacticResult& tactic : report.tactics) {
    if (tactic.id == "bf16") tactic.verdict.outcome = Outcome::kept;
  }
  REQUIRE(report.check().size() >= 1);
  CHECK(report.check()[0].starts_with("bf16: "));
  report.rejudge();
  CHECK(report.check().empty());
  report.recommendation.tactics = {"bf16"};
  CHECK(report.check().size() == 1);
  report.rejudge();
  report.tactics[0].raw.rounds[0].baseline.timed.seconds = 0;
  CHECK(report.check()[0].find("cannot be judged") != std::string::npos);
}

TEST_CASE("files that are no audit are refused by name") {
  const Folder folder;
  const std::string path = folder / "audit.json";
  const std::string good = sample_report().to_json();
  const auto refuses = [&](const std::string& content, const std::string& part) {
    write(path, content);
    try {
      AuditReport::load(path);
      FAIL("loaded: " + part);
    } catch (const DataError& e) {
      INFO(e.what());
      CHECK(std::string(e.what()).starts_with(path));
      CHECK(std::string(e.what()).find(part) != std::string::npos);
    }
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  refuses("", "empty");
  refuses("<html>", "not a whole JSON file");
  refuses("[1, 2]", "no audit");
  refuses("{\"format\": \"other\"}", "no audit");
  for (const std::size_t share : {1, 3, 7, 9})
    refuses(good.substr(0, good.size() * share / 10), "not a whole JSON file");
  refuses(replaced("\"version\": 1", "\"version\": 2"), "version 2");
  refuses(replaced("\"workload\"", "\"worklode\""), "'workload' is missing");
  refuses(replaced("\"steps\": 5", "\"steps\": 5.5"), "'baseline.warmup.steps' is not a whole number");
  refuses(replaced("\"steps\": 5", "\"steps\": 18446744073709551615"), "is not a 64-bit integer");
  refuses(replaced("\"seconds\": ", "\"seconds\": \"fast\", \"x\": "), "'baseline.warmup.seconds' is not a number");
  refuses(replaced("\"outcome\": \"kept\"", "\"outcome\": \"liked\""), "verdict.outcome' is not kept");
  refuses(replaced("\"candidate_first\": false", "\"candidate_first\": 0"), "is not true or false");
  CHECK_THROWS_AS(AuditReport::load(folder / "missing.json"), DataError);
  CHECK_THROWS_AS(AuditReport::load(folder / "."), DataError);
}

TEST_CASE("a file that cannot be written is an error that names it, and leaves nothing behind") {
  const Folder folder;
  const AuditReport report = sample_report();
  const std::string nowhere = folder / "no/such/folder.json";
  try {
    report.save(nowhere);
    FAIL("saved");
  } catch (const Error& e) {
    CHECK(std::string(e.what()).find(nowhere) != std::string::npos);
  }
  REQUIRE(::mkdir((folder / "taken").c_str(), 0700) == 0);
  CHECK_THROWS_AS(report.write_html(folder / "taken"), Error);
  CHECK(folder.files() == 1);
}

TEST_CASE("a message with bytes that are no UTF-8 does not cost the audit") {
  AuditReport report = sample_report();
  report.loader_error = "bad \xff byte";
  CHECK(AuditReport::from_json(report.to_json()).loader_error == "bad \xEF\xBF\xBD byte");
  report.loader_ceiling.reset();
  CHECK(report.to_html().find("bad \xEF\xBF\xBD byte") != std::string::npos);
}

TEST_CASE("the table says verdict, ratio, interval and reason of every tactic") {
  const AuditReport report = sample_report();
  std::ostringstream out;
  report.print_table(out);
  for (const TacticResult& tactic : report.tactics) {
    CHECK(out.str().find(tactic.title) != std::string::npos);
    CHECK(out.str().find(tactic.verdict.reason.substr(tactic.verdict.reason.find(": ") + 2)) != std::string::npos);
    CHECK(out.str().find(to_string(tactic.verdict.outcome)) != std::string::npos);
  }
  CHECK(out.str().find(report.recommendation.text) != std::string::npos);
  CHECK(out.str().find("st::ChannelsLast{}") != std::string::npos);
}

TEST_CASE("audit.html is well formed and refers to nothing outside itself") {
  const Folder folder;
  AuditReport report = sample_report();
  report.write_html(folder / "audit.html");
  std::string html = read(folder / "audit.html");
  CHECK(html == report.to_html());
  CHECK(first_fault(html) == "");
  CHECK(first_fault("<html><p>a</div></html>") != "");               // the check itself can fail
  const std::string name = " xmlns=\"http://www.w3.org/2000/svg\"";  // a name, which nobody fetches
  for (auto at = html.find(name); at != std::string::npos; at = html.find(name)) html.erase(at, name.size());
  for (const char* outside : {"http:", "https:", "src=", "href=", "@import", "url(", "<script", "<link", "nan%"}) {
    INFO(outside);
    CHECK(html.find(outside) == std::string::npos);
  }
  CHECK(html.find("prefers-color-scheme:dark") != std::string::npos);
  for (const TacticResult& tactic : report.tactics) {
    if (tactic.id != "big-lr") CHECK(html.find(tactic.title) != std::string::npos);
  }
  CHECK(html.find("&lt;lr &amp; more&gt;") != std::string::npos);
  CHECK(html.find("<lr & more>") == std::string::npos);
}

TEST_CASE("reports with little in them still make a page") {
  AuditReport empty;
  empty.rejudge();
  CHECK(first_fault(empty.to_html()) == "");
  AuditReport report = sample_report();
  for (TacticResult& tactic : report.tactics) {
    for (AbRound& round : tactic.raw.rounds) round.candidate.timed.loss_sum = std::nan("");
  }
  report.rejudge();
  CHECK(report.recommendation.tactics.empty());
  CHECK(report.to_html().find("Nothing pays here") != std::string::npos);
  CHECK(report.to_html().find("nan%") == std::string::npos);
  report.tactics[0].raw.rounds[0].baseline.timed.seconds = 0;
  CHECK(first_fault(report.to_html()) == "");
  std::ostringstream out;
  empty.print_table(out);
  CHECK(out.str().find("Nothing that was tried") != std::string::npos);
}

TEST_CASE("the machine is read, and what the system does not tell stays unknown") {
  const Folder folder;
  write(folder / "cpuinfo",
        "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 amx_bf16 avx512_bf16 sse\n");
  write(folder / "meminfo", "MemTotal:        2048 kB\nMemFree: 1 kB\n");
  const Machine machine = read_machine(folder / ".");
  CHECK(machine.cpu == "Some CPU @ 2 GHz");
  CHECK(machine.isa == std::vector<std::string>{"avx2", "avx512_bf16", "amx_bf16"});
  CHECK(machine.memory_bytes == 2 << 20);
  CHECK(machine.libtorch.starts_with("2."));
  CHECK(machine.threads >= 1);
  const Machine unknown = read_machine(folder / "nowhere");
  CHECK(unknown.cpu == "unknown");
  CHECK(unknown.memory_bytes == 0);
}

// SATURATE_AUDIT_PREVIEW=folder test_audit "[preview]": the page to look at in a browser.
TEST_CASE("preview", "[.preview]") {
  const char* folder = std::getenv("SATURATE_AUDIT_PREVIEW");
  REQUIRE(folder != nullptr);
  AuditReport report = sample_report();
  report.lr_curve = {"Warm-up, then half a cosine",
                     schedule_curve(Warmup{100, CosineAnnealingLr{.total = 900}}, 1e-3, 1000)};
  report.write_html(std::string(folder) + "/audit.html");
  report.save(std::string(folder) + "/audit.json");
  std::ostringstream out;
  report.print_table(out);
  write(std::string(folder) + "/audit.txt", out.str());
  for (TacticResult& tactic : report.tactics) tactic.rules.min_gain = 9;
  report.rejudge();
  report.write_html(std::string(folder) + "/nothing.html");
}

}  // namespace
}  // namespace saturate::audit
