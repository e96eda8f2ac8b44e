// Parsing is strict: what is not wholly a number within the limits is an error, never a default.
#include "comm/launch_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <thread>

#include "comm/patience.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::comm {
namespace {

constexpr int most_ranks = 1024;
constexpr int most_threads = 1024;
constexpr std::chrono::milliseconds least_timeout{1};
constexpr std::chrono::milliseconds longest_timeout = std::chrono::hours(24 * 7);

// Returns the number that a text wholly is; none for other texts.
template <typename Number>
std::optional<Number> number_of(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

int require_count(std::string_view option, std::optional<int> value, int most, const std::string& said) {
  if (value && *value >= 1 && *value <= most) return *value;
  throw UsageError(fmt::format("{} takes a whole number from 1 to {}, not {}", option, most, said));
}

int parse_count(std::string_view option, const std::string& text, int most) {
  return require_count(option, number_of<int>(text), most, fmt::format("\"{}\"", text));
}

[[noreturn]] void reject_timeout(std::string_view value) {
  throw UsageError(fmt::format("--timeout takes seconds from {} to {}, not {}", in_seconds(least_timeout),
                               in_seconds(longest_timeout), value));
}

std::chrono::milliseconds parse_timeout(const std::string& text) {
  const double milliseconds = number_of<double>(text).value_or(0.0) * 1000;
  const auto most = static_cast<double>(longest_timeout.count());
  // Written so that NaN is rejected too.
  if (!(milliseconds >= 1 && milliseconds <= most)) reject_timeout(fmt::format("\"{}\"", text));
  return std::chrono::milliseconds(std::llround(milliseconds));
}

std::filesystem::path parse_directory(const std::string& text) {
  if (text.empty()) throw UsageError("--log-dir takes the path of a directory, not \"\"");
  return text;
}

// One of a few words.
template <typename Choice>
struct ChoiceWord {
  std::string_view text;
  Choice choice;
};
template <typename Choice, std::size_t count>
Choice parse_word(std::string_view option, const std::string& text, const ChoiceWord<Choice> (&words)[count]) {
  std::string known;
  for (std::size_t i = 0; i < count; ++i) {
    if (text == words[i].text) return words[i].choice;
    known += fmt::format("{}{}", i == 0 ? "" : i + 1 == count ? " or " : ", ", words[i].text);
  }
  throw UsageError(fmt::format("{} takes {}, not \"{}\"", option, known, text));
}

constexpr ChoiceWord<DeviceChoice> device_words[] = {
    {"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}};
constexpr ChoiceWord<BackendChoice> backend_words[] = {{"auto", BackendChoice::automatic},
                                                       {"nccl", BackendChoice::nccl}};
constexpr ChoiceWord<SumChoice> sum_words[] = {{"ranked", SumChoice::ranked}, {"fast", SumChoice::fast}};

struct LaunchOption {
  std::string_view name;
  std::string_view type;
  std::string_view what;
  void (*set)(LaunchOptions& options, const std::string& text);
};

constexpr LaunchOption launch_options[] = {
    {"--ranks", "N", "Ranks, each a thread of this process; under mpirun, torchrun or srun each process is one [1]",
     [](auto& options, auto& text) { options.ranks = parse_count("--ranks", text, most_ranks); }},
    {"--threads", "N", "Threads on which one rank computes [cores / ranks]",
     [](auto& options, auto& text) { options.threads = parse_count("--threads", text, most_threads); }},
    {"--device", "{auto,cpu,cuda}", "Where ranks compute; auto: on CUDA devices where there are any [cpu]",
     [](auto& options, auto& text) { options.device = parse_word("--device", text, device_words); }},
    {"--backend", "{auto,nccl}", "Who moves data between ranks with CUDA devices; nccl: NVIDIA's library [auto]",
     [](auto& options, auto& text) { options.backend = parse_word("--backend", text, backend_words); }},
    {"--sums", "{ranked,fast}", "Sums over ranks: in rank order, or as NCCL forms them [ranked]",
     [](auto& options, auto& text) { options.sums = parse_word("--sums", text, sum_words); }},
    {"--timeout", "SECONDS", "How long a rank waits for another one [60]",
     [](auto& options, auto& text) { options.timeout = parse_timeout(text); }},
    {"--log-dir", "DIR", "Directory for rank-R.log, one of each rank",
     [](auto& options, auto& text) { options.log_dir = parse_directory(text); }},
};

const LaunchOption* find_option(std::string_view name) {
  const auto found = std::find_if(std::begin(launch_options), std::end(launch_options),
                                  [&](const LaunchOption& option) { return option.name == name; });
  return found == std::end(launch_options) ? nullptr : found;
}

}  // namespace

void validate(const LaunchOptions& options) {
  const auto require = [](std::string_view option, std::optional<int> value, int most) {
    if (value) require_count(option, value, most, fmt::to_string(*value));
  };
  require("--ranks", options.ranks, most_ranks);
  require("--threads", options.threads, most_threads);
  if (options.timeout < least_timeout || options.timeout > longest_timeout) {
    reject_timeout(fmt::to_string(in_seconds(options.timeout)));
  }
}

int threads_per_rank(const LaunchOptions& options) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return options.threads.value_or(std::max(1, cores / options.ranks.value_or(1)));
}

// Arguments that begin with no option's name ("--ranks" of "--ranks=4") are others'.
LaunchArguments parse_launch_arguments(std::span<const std::string> arguments) {
  LaunchArguments parsed;
  std::set<std::string_view> given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const std::size_t equals = argument.find('=');
    const LaunchOption* const option = find_option(std::string_view(argument).substr(0, equals));
    if (option == nullptr) {
      parsed.rest.push_back(argument);
      continue;
    }
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      throw UsageError(fmt::format("{} needs a value", option->name));
    }
    const std::string value = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    if (!given.insert(option->name).second) throw UsageError(fmt::format("{} is given twice", option->name));
    option->set(parsed.options, value);
  }
  return parsed;
}

std::string help_page(std::string_view program, std::string_view about) {
  std::string page = about.empty() ? "" : fmt::format("{}\n\n", about);
  page += fmt::format("Usage: {} [OPTION...]\n\n", program);
  for (const LaunchOption& option : launch_options) {
    page += fmt::format("  {:<26}{}\n", fmt::format("{} {}", option.name, option.type), option.what);
  }
  page += fmt::format("  {:<26}{}\n\nExample: {} --ranks 4\n", "--help", "Prints this page", program);
  return page;
}

}  // namespace tessera::comm

namespace tessera {

DeviceKind resolve(DeviceChoice choice) {
  if (choice == DeviceChoice::cpu) return DeviceKind::cpu;
  if (cuda_device_count() > 0) return DeviceKind::cuda;
  if (choice == DeviceChoice::automatic) return DeviceKind::cpu;
  throw UnavailableError(fmt::format("--device cuda: {}; use --device cpu", why_no_cuda()));
}

}  // namespace tessera
