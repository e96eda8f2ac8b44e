// Parsing is strict: what is not wholly a number within the limits is an error, never a default.
#include "comm/launch_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <thread>

#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

constexpr int most_ranks = 1024;
constexpr int most_threads = 1024;
constexpr std::chrono::milliseconds least_timeout{1};
constexpr std::chrono::milliseconds longest_timeout = std::chrono::hours(24 * 7);
constexpr std::string_view option_names[] = {"--ranks",  "--timeout", "--threads", "--log-dir",
                                             "--device", "--backend", "--sums"};

void require_count(std::string_view option, int value, int most) {
  if (value >= 1 && value <= most) return;
  throw UsageError(fmt::format("{} takes a whole number from 1 to {}, not {}", option, most, value));
}

int parse_count(std::string_view option, const std::string& text, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= most) return value;
  throw UsageError(fmt::format("{} takes a whole number from 1 to {}, not \"{}\"", option, most, text));
}

[[noreturn]] void reject_timeout(std::string_view value) {
  throw UsageError(fmt::format("--timeout takes seconds from {} to {}, not {}",
                               std::chrono::duration<double>(least_timeout).count(),
                               std::chrono::duration<double>(longest_timeout).count(), value));
}

std::chrono::milliseconds parse_timeout(const std::string& text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool number = error == std::errc() && end == text.data() + text.size();
  const double milliseconds = seconds * 1000;
  const auto most = static_cast<double>(longest_timeout.count());
  // Written so that NaN is rejected too.
  if (!number || !(milliseconds >= 1 && milliseconds <= most)) reject_timeout(fmt::format("\"{}\"", text));
  return std::chrono::milliseconds(std::llround(milliseconds));
}

std::filesystem::path parse_directory(const std::string& text) {
  if (text.empty()) throw UsageError("--log-dir takes the path of a directory, not \"\"");
  return text;
}

DeviceChoice parse_device(const std::string& text) {
  if (text == "auto") return DeviceChoice::automatic;
  if (text == "cpu") return DeviceChoice::cpu;
  if (text == "cuda") return DeviceChoice::cuda;
  throw UsageError(fmt::format("--device takes auto, cpu or cuda, not \"{}\"", text));
}

BackendChoice parse_backend(const std::string& text) {
  if (text == "auto") return BackendChoice::automatic;
  if (text == "nccl") return BackendChoice::nccl;
  throw UsageError(fmt::format("--backend takes auto or nccl, not \"{}\"", text));
}

SumChoice parse_sums(const std::string& text) {
  if (text == "ranked") return SumChoice::ranked;
  if (text == "fast") return SumChoice::fast;
  throw UsageError(fmt::format("--sums takes ranked or fast, not \"{}\"", text));
}

// The name of a launch option at the front of an argument: "--ranks" of "--ranks=4"; none for others' arguments.
std::optional<std::string> option_in(const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  const bool known = std::find(std::begin(option_names), std::end(option_names), name) != std::end(option_names);
  return known ? std::optional(name) : std::nullopt;
}

struct SplitArguments {
  std::map<std::string, std::string, std::less<>> values;  // by option
  std::vector<std::string> rest;
};

SplitArguments split(std::span<const std::string> arguments) {
  SplitArguments result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::optional<std::string> option = option_in(arguments[i]);
    if (!option) {
      result.rest.push_back(arguments[i]);
      continue;
    }
    std::string value;
    if (arguments[i].size() > option->size()) {
      value = arguments[i].substr(option->size() + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      throw UsageError(fmt::format("{} needs a value", *option));
    }
    if (!result.values.emplace(*option, std::move(value)).second) {
      throw UsageError(fmt::format("{} is given twice", *option));
    }
  }
  return result;
}

}  // namespace

void validate(const LaunchOptions& options) {
  if (options.ranks) require_count("--ranks", *options.ranks, most_ranks);
  if (options.threads) require_count("--threads", *options.threads, most_threads);
  if (options.timeout < least_timeout || options.timeout > longest_timeout) {
    reject_timeout(fmt::to_string(std::chrono::duration<double>(options.timeout).count()));
  }
}

int thread_ranks(const LaunchOptions& options) { return options.ranks.value_or(1); }

int threads_per_rank(const LaunchOptions& options) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return options.threads.value_or(std::max(1, cores / thread_ranks(options)));
}

LaunchArguments parse_launch_arguments(std::span<const std::string> arguments) {
  SplitArguments split_arguments = split(arguments);
  LaunchOptions options;
  for (const auto& [option, value] : split_arguments.values) {
    if (option == "--ranks") options.ranks = parse_count(option, value, most_ranks);
    if (option == "--threads") options.threads = parse_count(option, value, most_threads);
    if (option == "--timeout") options.timeout = parse_timeout(value);
    if (option == "--log-dir") options.log_dir = parse_directory(value);
    if (option == "--device") options.device = parse_device(value);
    if (option == "--backend") options.backend = parse_backend(value);
    if (option == "--sums") options.sums = parse_sums(value);
  }
  return {.options = options, .rest = std::move(split_arguments.rest)};
}

}  // namespace tessera::comm
