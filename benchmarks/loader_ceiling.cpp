// SPDX-License-Identifier: Apache-2.0
// How fast image data can be read and decoded here, and what stops it:
//
//   loader_ceiling 'train-{000..127}.tar' --size 224 --crop random_resized --workers 1,2,auto [--step-ms 41]
//   loader_ceiling images/train            a folder per class
//   loader_ceiling train.tar.gz --stream   shards that are read from front to end
#include "saturate/data/loader_ceiling.hpp"
#include "saturate/data/image_folder.hpp"
#include "saturate/data/image_source.hpp"
#include "saturate/data/prefetch_loader.hpp"
#include "saturate/data/tar_shards.hpp"
#include "saturate/data/tar_stream.hpp"

#include <sys/stat.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace {

namespace data = saturate::data;

struct Arguments {
  std::string path;
  std::vector<std::string> workers{"auto"};
  int64_t batch_size = 128, prefetch = 8, size = 224, resize = 0;
  data::Crop crop = data::Crop::random_resized;
  double seconds = 2, step_ms = 0;
  bool stream = false;
};

int64_t threads_of(const std::string& text) { return text == "auto" ? data::auto_workers : std::stoll(text); }

template <class S>
void measure(const Arguments& arguments, const S& source) {
  for (const std::string& workers : arguments.workers) {
    data::PrefetchLoader<S> loader(source, {.batch_size = arguments.batch_size,
                                            .shuffle = data::Source<S>,
                                            .workers = threads_of(workers),
                                            .prefetch = arguments.prefetch});
    const data::LoaderCeiling ceiling = data::loader_ceiling(loader, arguments.seconds);
    std::printf("workers %s: %s\n", workers.c_str(), ceiling.words().c_str());
    if (arguments.step_ms > 0)
      std::printf("  %s\n", data::compare_with_step(ceiling, 1e-3 * arguments.step_ms).c_str());
    std::fflush(stdout);
  }
}

void run(const Arguments& arguments) {
  const data::ImageOptions images{.height = arguments.size,
                                  .width = arguments.size,
                                  .crop = arguments.crop,
                                  .resize = arguments.resize,
                                  .flip = 0.5,
                                  .mean = {0.485, 0.456, 0.406},
                                  .std = {0.229, 0.224, 0.225}};
  struct ::stat status {};
  const bool folder = ::stat(arguments.path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  if (arguments.stream) {
    measure(arguments, data::ImageStream(data::TarStream(arguments.path), images));
  } else if (folder) {
    measure(arguments, data::ImageSource(data::ImageFolder(arguments.path), images));
  } else {
    measure(arguments, data::ImageSource(data::TarShards(arguments.path), images));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"Reads and decodes images without a model, and says how fast that goes and what stops it there."};
  const std::map<std::string, data::Crop> crops{{"none", data::Crop::none},
                                                {"center", data::Crop::center},
                                                {"random", data::Crop::random},
                                                {"random_resized", data::Crop::random_resized}};
  app.add_option("path", arguments.path, "tar shards (a path or a brace list), or a folder with a folder per class")
      ->required();
  app.add_option("--workers", arguments.workers, "threads to try, one after the other: numbers or auto")
      ->delimiter(',')
      ->check([](const std::string& text) {
        return text == "auto" || (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos)
                   ? std::string()
                   : "\"" + text + "\" is neither a number nor auto";
      })
      ->capture_default_str();
  app.add_option("--batch-size", arguments.batch_size)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--prefetch", arguments.prefetch, "batches ahead")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--size", arguments.size, "height and width of the output")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--crop", arguments.crop, "none, center, random or random_resized")
      ->transform(CLI::CheckedTransformer(crops))
      ->default_str("random_resized");
  app.add_option("--resize", arguments.resize, "the shorter side before a center or random crop; 0: as it is")
      ->capture_default_str();
  app.add_option("--seconds", arguments.seconds, "for each number of workers")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--step-ms", arguments.step_ms, "what a training step takes: says whether the loader keeps up");
  app.add_flag("--stream", arguments.stream, "read the shards from front to end, without an index");
  CLI11_PARSE(app, argc, argv);
  try {
    run(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loader_ceiling: %s\n", error.what());
    return 1;
  }
}
