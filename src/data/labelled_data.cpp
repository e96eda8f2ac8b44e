// Labelled samples: filling a batch from any source of them, those held in memory and their split, and the CSV reader,
// for which any bytes at all end in a table or in a DataError that says where.
#include "tessera/data/labelled_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "data/permutation.hpp"
#include "tessera/base/error.hpp"
#include "tessera/data/open_file.hpp"

namespace tessera {

void LabelledSource::read(const SampleBatch& chosen, LabelledBatch& batch) const {
  batch.rows = chosen.indices.size();
  batch.columns = columns();
  batch.features.resize(batch.rows * batch.columns);
  batch.labels.resize(batch.rows);
  batch.weights = chosen.weights;
  batch.epoch = chosen.epoch;
  batch.global_samples = chosen.global_samples;
  for (std::size_t row = 0; row < batch.rows; ++row) {
    const std::size_t index = chosen.indices[row];
    if (index >= size()) throw UsageError(fmt::format("sample {} was asked for, but there are {}", index, size()));
    read_sample(index, chosen.epoch, batch.features.data() + row * batch.columns, batch.labels[row]);
  }
}

LabelledData::LabelledData(std::size_t columns, std::size_t classes, std::vector<float> features,
                           std::vector<std::int32_t> labels)
    : columns_(columns), classes_(classes), features_(std::move(features)), labels_(std::move(labels)) {
  if (features_.size() != columns_ * labels_.size()) {
    throw UsageError(
        fmt::format("LabelledData: {} features do not make {} rows of {}", features_.size(), labels_.size(), columns_));
  }
  for (std::size_t row = 0; row < labels_.size(); ++row) {
    if (labels_[row] < 0 || static_cast<std::size_t>(labels_[row]) >= classes_) {
      throw UsageError(fmt::format("LabelledData: the label of row {} is {}, but there are {} classes", row,
                                   labels_[row], classes_));
    }
  }
}

void LabelledData::read_sample(std::size_t index, std::uint64_t, float* features, std::int32_t& label) const {
  std::copy_n(features_.data() + index * columns_, columns_, features);
  label = labels_[index];
}

namespace {

LabelledData take(const LabelledData& data, std::span<const std::size_t> rows) {
  SampleBatch chosen;
  chosen.indices.assign(rows.begin(), rows.end());
  LabelledBatch batch;
  data.read(chosen, batch);
  return {data.columns(), data.classes(), std::move(batch.features), std::move(batch.labels)};
}

}  // namespace

Split split(const LabelledData& data, std::size_t held_out, std::uint64_t seed) {
  if (held_out > data.size()) {
    throw UsageError(fmt::format("split: {} samples cannot be held out of {}", held_out, data.size()));
  }
  std::vector<std::size_t> order(data.size());
  data::permute(order, seed, 0);
  const std::span<const std::size_t> rows(order);
  return {.training = take(data, rows.subspan(held_out)), .held_out = take(data, rows.first(held_out))};
}

// ---- CSV ----

namespace {

constexpr std::int32_t largest_label = 65535;
constexpr std::string_view blanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// Errors show a field so: short, and without bytes that would upset a terminal.
std::string quoted(std::string_view field) {
  std::string text = "'";
  for (const char c : field.substr(0, 24)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (field.size() > 24 ? "…'" : "'");
}

// Nothing for what is no finite number. One that is too small for fp32 becomes what is nearest.
std::optional<float> finite_number(std::string_view field) {
  const char* const field_end = field.data() + field.size();
  float value = 0.0f;
  auto [end, error] = std::from_chars(field.data(), field_end, value);
  if (error == std::errc::result_out_of_range) {
    double wide = 0.0;
    error = std::from_chars(field.data(), field_end, wide).ec;
    if (std::abs(wide) > 1.0) return std::nullopt;  // too large
    value = static_cast<float>(wide);
  }
  const bool is_one = error == std::errc() && end == field_end && std::isfinite(value);
  return is_one ? std::optional(value) : std::nullopt;
}

class Parser {
 public:
  Parser(std::string path, const CsvOptions& options)
      : path_(std::move(path)), options_(options), columns_(options.columns) {}

  LabelledData parse(std::string_view text) {
    text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
    if (text.empty()) throw DataError(fmt::format("{}: is empty", path_));
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      ++line_;
      parse_line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    const std::size_t classes = options_.classes != 0 ? options_.classes : static_cast<std::size_t>(largest_) + 1;
    return {columns_, classes, std::move(features_), std::move(labels_)};
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}, line {}: {}", path_, line_, what));
  }

  void parse_line(std::string_view line) {
    if (trimmed(line).empty()) fail("is empty");
    check_columns(static_cast<std::size_t>(std::count(line.begin(), line.end(), ',')));
    for (std::size_t column = 1; column <= columns_; ++column) {
      const std::size_t comma = line.find(',');
      features_.push_back(parse_feature(trimmed(line.substr(0, comma)), column));
      line.remove_prefix(comma + 1);
    }
    labels_.push_back(parse_label(trimmed(line)));
  }

  void check_columns(std::size_t features) {
    if (features == 0) fail("needs features and a label, separated by commas");
    if (columns_ == 0) columns_ = features;
    if (features != columns_) {
      fail(fmt::format("has {} columns, expected {} ({} features and a label)", features + 1, columns_ + 1, columns_));
    }
  }

  float parse_feature(std::string_view field, std::size_t column) const {
    const std::optional<float> value = finite_number(field);
    if (!value) {
      const std::string_view hint = line_ == 1 ? " (a header line is not allowed)" : "";
      fail(fmt::format("column {} is {}, not a finite number{}", column, quoted(field), hint));
    }
    const float scaled = *value * options_.scale;
    if (std::isfinite(scaled)) return scaled;
    fail(fmt::format("column {} is {}, and times the scale of {} no finite number", column, quoted(field),
                     options_.scale));
  }

  std::int32_t parse_label(std::string_view field) {
    const std::int32_t limit =
        options_.classes != 0 ? static_cast<std::int32_t>(std::min<std::size_t>(options_.classes - 1, largest_label))
                              : largest_label;
    std::int32_t label = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), label);
    if (error != std::errc() || end != field.data() + field.size() || label < 0 || label > limit) {
      fail(fmt::format("the label is {}, not a whole number from 0 to {}", quoted(field), limit));
    }
    largest_ = std::max(largest_, label);
    return label;
  }

  std::string path_;
  CsvOptions options_;
  std::size_t columns_;
  std::size_t line_ = 0;
  std::int32_t largest_ = 0;
  std::vector<float> features_;
  std::vector<std::int32_t> labels_;
};

}  // namespace

LabelledData read_labelled_csv(const std::filesystem::path& path, const CsvOptions& options) {
  return Parser(path.string(), options).parse(data::read_whole_file(path, "a CSV file"));
}

}  // namespace tessera
