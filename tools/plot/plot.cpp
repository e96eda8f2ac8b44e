// Python gets the chart on standard input, from a file without a name, and what it says comes back by another.
#include "plot.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "plot/script.hpp"
#include "tessera/base/error.hpp"

namespace tools {

namespace {

// The script's exit codes, and one of ours.
constexpr int drawn = 0;
constexpr int not_drawable = 2;
constexpr int no_matplotlib = 3;
constexpr int no_python = -1;

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

struct Outcome {
  int code;
  std::string text;
};

File temporary_file() {
  File file(std::tmpfile());
  if (!file) throw tessera::DataError("no temporary file can be made to draw from; is the disk full?");
  return file;
}

File file_of(const std::string& text) {
  File file = temporary_file();
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() || std::fflush(file.get()) != 0)
    throw tessera::DataError("a temporary file cannot be written to draw from; is the disk full?");
  std::rewind(file.get());
  return file;
}

std::string text_in(std::FILE* file) {
  std::rewind(file);
  std::array<char, 4096> block{};
  std::string text;
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), file)) text.append(block.data(), count);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// The child's file actions, for as long as they are needed.
class Redirection {
 public:
  Redirection(std::FILE* input, std::FILE* errors) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, fileno(input), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, fileno(errors), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, fileno(errors), STDERR_FILENO);
  }
  ~Redirection() { posix_spawn_file_actions_destroy(&actions_); }
  Redirection(const Redirection&) = delete;
  Redirection& operator=(const Redirection&) = delete;

  const posix_spawn_file_actions_t* actions() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

int exit_code(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waiting for Python");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Outcome draw_with(std::string python, const std::string& chart, std::string figure) {
  const File input = file_of(chart);
  const File errors = temporary_file();
  const Redirection redirection(input.get(), errors.get());
  std::array<std::string, 5> words = {python, "-c", plot_script, "-", std::move(figure)};
  std::array<char*, 6> arguments{};
  for (std::size_t w = 0; w < words.size(); ++w) arguments[w] = words[w].data();
  pid_t child = 0;
  if (posix_spawnp(&child, python.c_str(), redirection.actions(), nullptr, arguments.data(), environ) != 0)
    return {no_python, fmt::format("drawing needs Python with matplotlib, and {} cannot be run: install "
                                   "python3-matplotlib (Debian: apt-get install python3-matplotlib)",
                                   python)};
  const int code = exit_code(child);
  return {code, text_in(errors.get())};
}

std::vector<std::string> pythons() {
  if (const char* chosen = std::getenv("TESSERA_PLOT_PYTHON")) return {chosen};
  return {"python3", "/usr/bin/python3"};
}

}  // namespace

bool is_figure(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension();
  return extension == ".svg" || extension == ".png";
}

void plot(const Json& chart, const std::string& figure) {
  Outcome outcome{};
  for (const std::string& python : pythons()) {
    outcome = draw_with(python, chart.dump(), figure);
    if (outcome.code != no_python && outcome.code != no_matplotlib) break;
  }
  switch (outcome.code) {
    case drawn: return;
    case not_drawable: throw tessera::InternalError(outcome.text);
    case no_python:
    case no_matplotlib: throw tessera::UnavailableError(outcome.text);
    default: throw tessera::DataError(fmt::format("{} was not drawn: {}", figure, outcome.text));
  }
}

}  // namespace tools
