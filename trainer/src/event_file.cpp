// Records and messages are little-endian, as this code is where it runs.
#include "trainer/src/event_file.hpp"

#include <fmt/format.h>
#include <isa-l/crc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <system_error>

#include "tessera/base/error.hpp"

namespace tessera::trainer {

namespace {

static_assert(std::endian::native == std::endian::little);

// ---- protocol buffers: a field is its number and how long it is, and then its value ----

constexpr unsigned as_varint = 0, as_64_bits = 1, as_text = 2, as_32_bits = 5;

void add_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(0x80 | (value & 0x7f));
  to += static_cast<char>(value);
}

template <typename Value>
void add_plain(std::string& to, Value value) {
  std::array<char, sizeof value> bytes;
  std::memcpy(bytes.data(), &value, sizeof value);
  to.append(bytes.data(), bytes.size());
}

void add_whole(std::string& to, unsigned field, std::uint64_t value) {
  add_varint(to, field << 3 | as_varint);
  add_varint(to, value);
}
void add_double(std::string& to, unsigned field, double value) {
  add_varint(to, field << 3 | as_64_bits);
  add_plain(to, value);
}
void add_float(std::string& to, unsigned field, float value) {
  add_varint(to, field << 3 | as_32_bits);
  add_plain(to, value);
}
void add_text(std::string& to, unsigned field, std::string_view text) {
  add_varint(to, field << 3 | as_text);
  add_varint(to, text.size());
  to += text;
}

// ---- events ----

namespace event {
constexpr unsigned wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace summary {
constexpr unsigned value = 1;
}
namespace value {
constexpr unsigned tag = 1, simple_value = 2;
}
namespace session_log {
constexpr unsigned status = 1, start = 1;
}

std::string new_event(std::size_t step) {
  std::string result;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  add_double(result, event::wall_time, std::chrono::duration<double>(now).count());
  add_whole(result, event::step, step);
  return result;
}

void add_numbers(std::string& to, const std::string& prefix, const tools::Json& object) {
  for (const tools::JsonMember& member : object.members()) {
    const std::string name = prefix + member.key;
    if (member.value.is_object()) add_numbers(to, name + "/", member.value);
    if (!member.value.is_number()) continue;
    std::string one;
    add_text(one, value::tag, name);
    add_float(one, value::simple_value, static_cast<float>(member.value.number()));
    add_text(to, summary::value, one);
  }
}

// ---- records ----

std::uint32_t masked_checksum(std::string bytes) {
  const std::uint32_t crc =
      ~crc32_iscsi(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()), ~0u);
  return std::rotr(crc, 15) + 0xa282ead8u;
}

std::string host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

// TensorBoard knows its files by "tfevents" and orders them by the seconds behind it, so a new one is later than all
// that stand there.
constexpr std::string_view prefix = "events.out.tfevents.";

std::filesystem::path new_path(const std::filesystem::path& directory) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    std::int64_t there = 0;
    if (!name.starts_with(prefix)) continue;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), there);
    seconds = std::max(seconds, there + 1);
  }
  return directory / fmt::format("{}{:010}.{}.{}", prefix, seconds, host(), getpid());
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw tessera::DataError(fmt::format("{}: cannot be made: {}", directory.string(), error.message()));
  path_ = new_path(directory);
  file_.reset(std::fopen(path_.c_str(), "wx"));
  if (!file_) throw tessera::DataError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(errno)));
  std::string first = new_event(0);
  add_text(first, event::file_version, "brain.Event:2");
  put(first);
}

void EventFile::begin_at(std::size_t step) {
  std::string begins, started = new_event(step);
  add_whole(begins, session_log::status, session_log::start);
  add_text(started, event::session_log, begins);
  put(started);
}

void EventFile::write(std::size_t step, const tools::Json& metrics) {
  std::string figures, of_step = new_event(step);
  add_numbers(figures, "", metrics);
  add_text(of_step, event::summary, figures);
  put(of_step);
}

void EventFile::put(const std::string& event) {
  std::string length, record;
  add_plain(length, static_cast<std::uint64_t>(event.size()));
  record = length;
  add_plain(record, masked_checksum(length));
  record += event;
  add_plain(record, masked_checksum(event));
  const bool written = std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size();
  if (written && std::fflush(file_.get()) == 0) return;
  throw tessera::DataError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(errno)));
}

}  // namespace tessera::trainer
