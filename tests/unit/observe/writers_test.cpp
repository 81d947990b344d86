// SPDX-License-Identifier: Apache-2.0
#include <ftw.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "../../../src/trainer/callbacks/event_file.hpp"
#include "saturate/error.hpp"
#include "saturate/trainer/callbacks/csv_writer.hpp"
#include "saturate/trainer/callbacks/json_lines_writer.hpp"
#include "saturate/trainer/callbacks/tensorboard_writer.hpp"

using namespace saturate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "saturate_writers_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  // Not with std::filesystem::remove_all: LibTorch's wheel exports a broken one of its own, which wins over the
  // system's.
  ~Folder() {
    ::nftw(
        path_.c_str(), [](const char* name, const struct stat*, int, FTW*) { return ::remove(name); }, 16,
        FTW_DEPTH | FTW_PHYS);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> lines(const fs::path& path) {
  std::vector<std::string> result;
  std::istringstream text(read(path));
  for (std::string line; std::getline(text, line);) result.push_back(line);
  return result;
}

// Without the time, which is the second cell.
std::string without_time(const std::string& line) {
  const auto first = line.find(',');
  return line.substr(0, first) + line.substr(line.find(',', first + 1));
}

LogEvent log_event(TrainerState& state) {
  LogEvent log{state};
  log.loss = 0.1;
  log.learning_rate = 1e-3;
  log.grad_norm = 2.5;
  log.samples_per_second = 4000;
  log.data_wait_share = 0.25;
  log.step_seconds = 0.032;
  log.refused = 1;
  return log;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
const fs::path python = fs::path(SATURATE_SOURCE_DIR) / ".venv/bin/python";

std::string output_of(const std::string& command, int& status) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  status = ::pclose(pipe);
  return text;
}

// While it lives no file of this process grows beyond `bytes`: a full disk, without one.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace

TEST_CASE("CsvWriter: a line a log and a line a metric, on the disk at once") {
  const Folder folder;
  CsvWriter writer(folder / "made/on/demand/log.csv");
  TrainerState state{7, 8, 1, 512};
  writer.on_log(log_event(state));
  const Metrics metrics{{"accuracy", 0.875}, {"odd, \"name\"", 1}};
  writer.on_evaluate({state, metrics});
  const auto text = lines(folder / "made/on/demand/log.csv");
  REQUIRE(text.size() == 4);
  CHECK(text[0] ==
        "event,time,step,window,epoch,samples,loss,learning_rate,grad_norm,samples_per_second,data_wait_share,"
        "step_seconds,refused,metric,value");
  CHECK(without_time(text[1]) == "log,7,8,1,512,0.1,0.001,2.5,4000,0.25,0.032,1,,");
  CHECK(without_time(text[2]) == "evaluate,7,8,1,512,,,,,,,,accuracy,0.875");
  CHECK(without_time(text[3]) == "evaluate,7,8,1,512,,,,,,,,\"odd, \"\"name\"\"\",1");
}

TEST_CASE("CsvWriter: what is not finite is nan and inf, what is missing is empty") {
  const Folder folder;
  CsvWriter writer(folder / "log.csv");
  TrainerState state;
  auto log = log_event(state);
  log.loss = kNan;
  log.samples_per_second = -kInf;
  log.grad_norm.reset();
  writer.on_log(log);
  log.loss = -kNan;  // a sign is not part of a NaN
  writer.on_log(log);
  CHECK(without_time(lines(folder / "log.csv")[1]) == "log,0,0,0,0,nan,0.001,,-inf,0.25,0.032,1,,");
  CHECK(without_time(lines(folder / "log.csv")[2]) == "log,0,0,0,0,nan,0.001,,-inf,0.25,0.032,1,,");
}

TEST_CASE("CsvWriter: replaces by default; appends when told to, to the same columns only") {
  const Folder folder;
  TrainerState state;
  { CsvWriter(folder / "log.csv").on_log(log_event(state)); }
  {
    std::ofstream cut(folder / "log.csv", std::ios::app);
    cut << "log,17";  // a crash in the middle of a line
  }
  { CsvWriter(folder / "log.csv", {.append = true}).on_log(log_event(state)); }
  auto text = lines(folder / "log.csv");
  REQUIRE(text.size() == 4);
  CHECK(text[2] == "log,17");
  CHECK(without_time(text[3]) == without_time(text[1]));
  { CsvWriter(folder / "log.csv").on_log(log_event(state)); }
  CHECK(lines(folder / "log.csv").size() == 2);

  std::ofstream(folder / "other.csv") << "a,b\n1,2\n";
  CHECK_THROWS_MATCHES(CsvWriter(folder / "other.csv", {.append = true}), ConfigError,
                       MessageMatches(ContainsSubstring("other.csv") && ContainsSubstring("a,b")));
  CHECK(read(folder / "other.csv") == "a,b\n1,2\n");
}

TEST_CASE("JsonLinesWriter: one valid object a line, null for what is not finite") {
  if (!fs::exists(python)) SKIP("no " + python.string() + " to read the file with");
  const Folder folder;
  {
    JsonLinesWriter writer(folder / "log.jsonl");
    TrainerState state{7, 8, 1, 512};
    writer.on_fit_begin({state, 2, std::nullopt, 1234});
    auto log = log_event(state);
    writer.on_log(log);
    log.loss = kNan;
    log.grad_norm = kInf;
    writer.on_log(log);
    const Metrics metrics{{"a\"b\\\n", 0.1}, {"bytes \xff", -kInf}};
    writer.on_evaluate({state, metrics});
    writer.on_fit_end({state, 1.5, true});
  }
  // Python's reader accepts NaN and Infinity, which are not JSON: refuse them.
  const std::string program = R"(
import json, sys
def refuse(word): raise ValueError(word)
records = [json.loads(line, parse_constant=refuse) for line in open(sys.argv[1], encoding='utf-8')]
begin, first, second, evaluate, end = records
assert all(isinstance(r.pop('time'), float) for r in records)
state = dict(step=7, window=8, epoch=1, samples=512)
log = dict(learning_rate=1e-3, samples_per_second=4000.0, data_wait_share=0.25, step_seconds=0.032, refused=1)
assert begin == dict(event='fit_begin', epochs=2, parameters=1234, windows_per_epoch=None, **state), begin
assert first == dict(event='log', loss=0.1, grad_norm=2.5, **log, **state), first
assert second == dict(event='log', loss=None, grad_norm=None, **log, **state), second
assert evaluate == dict(event='evaluate', metrics={'a"b\\\n': 0.1, 'bytes \ufffd': None}, **state), evaluate
assert end == dict(event='fit_end', seconds=1.5, failed=True, **state), end
print('same')
)";
  std::ofstream(folder / "check.py") << program;
  int status = 0;
  const auto output = output_of(
      python.string() + " " + (folder / "check.py").string() + " " + (folder / "log.jsonl").string() + " 2>&1", status);
  CAPTURE(output);
  CHECK(status == 0);
  CHECK(output == "same\n");
}

TEST_CASE("JsonLinesWriter: appends when told to") {
  const Folder folder;
  TrainerState state;
  { JsonLinesWriter(folder / "log.jsonl").on_log(log_event(state)); }
  { JsonLinesWriter(folder / "log.jsonl", {.append = true}).on_log(log_event(state)); }
  CHECK(lines(folder / "log.jsonl").size() == 2);
  { JsonLinesWriter(folder / "log.jsonl").on_log(log_event(state)); }
  CHECK(lines(folder / "log.jsonl").size() == 1);
}

TEST_CASE("TensorBoardWriter: known CRCs and known bytes") {
  CHECK(saturate::detail::crc32c("123456789") == 0xE3069283u);              // the check value of CRC-32C
  CHECK(saturate::detail::crc32c(std::string(32, '\0')) == 0x8A9136AAu);    // RFC 3720, B.4
  CHECK(saturate::detail::crc32c(std::string(32, '\xff')) == 0x62A8AB43u);  // RFC 3720, B.4
  CHECK(saturate::detail::crc32c("") == 0);
  const std::string version(
      "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f\x1a\x0d"
      "brain.Event:2",
      24);
  CHECK(saturate::detail::version_event(1.0) == version);
  // time 1.0; step 300; summary { value { tag "a", simple_value 1.0 } }
  const std::string scalar(
      "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f\x10\xac\x02\x2a\x0a\x0a\x08\x0a\x01"
      "a\x15\x00\x00\x80\x3f",
      24);
  CHECK(saturate::detail::scalar_event(1.0, 300, "a", 1.0f) == scalar);
  const std::string record = saturate::detail::tf_record(version);
  REQUIRE(record.size() == 8 + 4 + version.size() + 4);
  CHECK(record.substr(0, 8) == std::string("\x18\0\0\0\0\0\0\0", 8));
  CHECK(record.substr(12, version.size()) == version);
}

TEST_CASE("TensorBoardWriter: TensorBoard's own reader gets the same values") {
  if (!fs::exists(python)) SKIP("no " + python.string() + " to read the file with");
  const Folder folder;
  {
    TensorBoardWriter writer(folder / "run");
    CHECK(writer.path().filename().string().rfind("events.out.tfevents.", 0) == 0);
    writer.scalar("by hand", 0, 0.1);
    writer.scalar("by hand", int64_t{1} << 40, -3e38);
    writer.scalar("by hand", -1, kNan);
    writer.scalar(std::string(300, 't'), 5, 1);  // a length of two bytes
    TrainerState state{7, 8, 1, 512};
    writer.on_log(log_event(state));
    const Metrics metrics{{"accuracy", 0.875}};
    writer.on_evaluate({state, metrics});
  }
  const std::string program = R"(
import glob, math, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
reader = EventAccumulator(sys.argv[1]).Reload()
assert reader.file_version == 2.0, reader.file_version
got = {tag: [(p.step, p.value) for p in reader.Scalars(tag)] for tag in reader.Tags()['scalars']}
hand = got.pop('by hand')
assert [step for step, _ in hand] == [0, 2**40, -1], hand
assert abs(hand[0][1] - 0.1) < 1e-8 and abs(hand[1][1] / -3e38 - 1) < 1e-7 and math.isnan(hand[2][1]), hand
want = {'train/loss': 0.1, 'train/learning_rate': 1e-3, 'train/grad_norm': 2.5, 'train/samples_per_second': 4000,
        'train/data_wait_share': 0.25, 'train/step_seconds': 0.032, 'train/refused': 1, 'evaluate/accuracy': 0.875}
assert got.pop('t' * 300) == [(5, 1.0)]
assert set(got) == set(want), set(got)
for tag, value in want.items():
  assert len(got[tag]) == 1 and got[tag][0][0] == 7 and abs(got[tag][0][1] - value) <= 1e-7 * max(1, value), (tag, got[tag])
# The reader above skips a record with a wrong CRC only sometimes; count all of them.
assert len(list(RawEventFileLoader(glob.glob(sys.argv[1] + '/events*')[0]).Load())) == 13
print('same')
)";
  std::ofstream(folder / "check.py") << program;
  int status = 0;
  const auto output = output_of(
      python.string() + " " + (folder / "check.py").string() + " " + (folder / "run").string() + " 2>&1", status);
  CAPTURE(output);
  CHECK(status == 0);
  CHECK(output.find("same\n") != std::string::npos);
}

TEST_CASE("TensorBoardWriter: two writers of one folder have two files, and a tag is needed") {
  const Folder folder;
  TensorBoardWriter first(folder / "run"), second(folder / "run");
  CHECK(first.path() != second.path());
  CHECK_THROWS_AS(first.scalar("", 0, 1), ConfigError);
}

TEST_CASE("Writers: a path that cannot be written is refused at construction, by name") {
  const Folder folder;
  std::ofstream(folder / "file") << "not a folder";
  const auto names_it = MessageMatches(ContainsSubstring((folder / "file").string()));
  CHECK_THROWS_MATCHES(CsvWriter(folder / "file/log.csv"), ConfigError, names_it);
  CHECK_THROWS_MATCHES(JsonLinesWriter(folder / "file/log.jsonl"), ConfigError, names_it);
  CHECK_THROWS_MATCHES(TensorBoardWriter(folder / "file"), ConfigError, names_it);
  CHECK_THROWS_AS(CsvWriter(folder / ""), ConfigError);  // a folder is no file
}

TEST_CASE("Writers: a full disk is an error that names the file, never silence") {
  CHECK_THROWS_MATCHES(CsvWriter("/dev/full"), Error, MessageMatches(ContainsSubstring("/dev/full")));
  TrainerState state;
  JsonLinesWriter json("/dev/full");
  CHECK_THROWS_MATCHES(json.on_log(log_event(state)), Error,
                       MessageMatches(ContainsSubstring("/dev/full") && ContainsSubstring("No space left")));
  CHECK_THROWS_AS(json.on_fit_end({state, 1, false}), Error);
  CHECK_NOTHROW(json.on_fit_end({state, 1, true}));  // the exception that leaves fit is the one to see

  const Folder folder;
  TensorBoardWriter board(folder / "run");
  const FileSizeLimit limit(fs::file_size(board.path()));
  CHECK_THROWS_MATCHES(board.scalar("a", 0, 1), Error, MessageMatches(ContainsSubstring(board.path().string())));
}
