// Labelled samples: the shipped digits, CSV files of every kind, splits and generated data.
#include "tessera/data/labelled_data.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "temporary_file.hpp"
#include "tessera/base/error.hpp"
#include "tessera/data/synthetic.hpp"

using namespace tessera;

namespace labelled_data_test {

LabelledBatch read_rows(const LabelledSource& source, std::vector<std::size_t> rows) {
  LabelledBatch batch;
  source.read({.indices = std::move(rows), .weights = {}}, batch);
  return batch;
}

LabelledBatch read_all(const LabelledSource& source) {
  std::vector<std::size_t> rows(source.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  return read_rows(source, rows);
}

LabelledData parse(const std::string& text, const CsvOptions& options = {}) {
  const TemporaryFile file(text);
  return read_labelled_csv(file.path(), options);
}

std::string complaint(const std::string& text, const CsvOptions& options = {}) {
  return ::complaint(text, [&](const std::filesystem::path& path) { read_labelled_csv(path, options); });
}

TEST_CASE("the_shipped_digits_are_whole") {
  const LabelledData digits = read_labelled_csv(TESSERA_TEST_DATA "/digits.csv", {.columns = 64, .classes = 10});
  CHECK(digits.size() == 1797);
  CHECK(digits.columns() == 64);
  const LabelledBatch all = read_all(digits);
  CHECK(std::all_of(all.features.begin(), all.features.end(),
                    [](float value) { return value >= 0.0f && value <= 16.0f; }));
  std::vector<std::size_t> per_class(10, 0);
  for (const std::int32_t label : all.labels) ++per_class[static_cast<std::size_t>(label)];
  CHECK(per_class == std::vector<std::size_t>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180});
  CHECK(std::accumulate(all.features.begin(), all.features.end(), 0.0) == 561718.0);
}

TEST_CASE("numbers_blanks_and_line_ends_are_read") {
  const LabelledData data = parse("1,-2.5,0\r\n 3e2 ,\t.5 , 2 \n\n", {.scale = 2.0f});
  CHECK(data.size() == 2);
  CHECK(data.columns() == 2);
  CHECK(data.classes() == 3);
  const LabelledBatch all = read_all(data);
  CHECK(all.features == std::vector<float>{2.0f, -5.0f, 600.0f, 1.0f});
  CHECK(all.labels == std::vector<std::int32_t>{0, 2});
}

// Programs that compute with 64 bits write such numbers.
TEST_CASE("numbers_that_fp32_has_no_bits_for_become_zero_or_what_is_nearest") {
  const LabelledData data = parse("1e-40,1e-50,-1e-60,1e-320,0\n");
  CHECK(read_all(data).features == std::vector<float>{1e-40f, 0.0f, 0.0f, 0.0f});
  CHECK(complaint("1,3e38,0\n", {.scale = 2.0f}) ==
        ", line 1: column 2 is '3e38', and times the scale of 2 no finite number");
}

TEST_CASE("damaged_files_are_described_with_their_line") {
  CHECK(complaint("") == ": is empty");
  CHECK(complaint("\n \n") == ": is empty");
  CHECK(complaint("1,2,0\n1,0\n") == ", line 2: has 2 columns, expected 3 (2 features and a label)");
  CHECK(complaint("1,2,3,0\n", {.columns = 2}) == ", line 1: has 4 columns, expected 3 (2 features and a label)");
  CHECK(complaint("7\n") == ", line 1: needs features and a label, separated by commas");
  CHECK(complaint("1,0\n\n1,0\n") == ", line 2: is empty");
  CHECK(complaint("1,0\nx1,0\n") == ", line 2: column 1 is 'x1', not a finite number");
  CHECK(complaint("a,label\n1,0\n") == ", line 1: column 1 is 'a', not a finite number (a header line is not allowed)");
  CHECK(complaint("1,,0\n").find("column 2 is ''") != std::string::npos);
  CHECK(complaint("nan,0\n").find("column 1 is 'nan'") != std::string::npos);
  CHECK(complaint("1e99,0\n").find("column 1 is '1e99'") != std::string::npos);
  CHECK(complaint("1,10\n", {.classes = 10}) == ", line 1: the label is '10', not a whole number from 0 to 9");
  CHECK(complaint("1,-1\n") == ", line 1: the label is '-1', not a whole number from 0 to 65535");
  CHECK(complaint("1,65536\n").find("the label is '65536'") != std::string::npos);
  CHECK(complaint("1,1.5\n").find("the label is '1.5'") != std::string::npos);
  CHECK(complaint(std::string("1\0,0\n", 5)).find("column 1 is '1?'") != std::string::npos);
  CHECK(complaint("1," + std::string(1000, 'z') + "\n").size() < 120);
}

TEST_CASE("what_is_not_a_file_is_an_error") {
  CHECK_THROWS_WITH_AS(read_labelled_csv("/no/such/file.csv"), "/no/such/file.csv: there is no such file", DataError);
  const std::string folder = std::filesystem::temp_directory_path().string();
  CHECK_THROWS_WITH_AS(read_labelled_csv(folder), (folder + ": is a directory, not a CSV file").c_str(), DataError);
  CHECK_THROWS_WITH_AS(read_labelled_csv("/dev/null"), "/dev/null: is not a regular file", DataError);
  const std::filesystem::path loop = folder + "/tessera_loop_" + std::to_string(::getpid());
  std::filesystem::create_symlink(loop, loop);
  CHECK_THROWS_WITH_AS(read_labelled_csv(loop),
                       (loop.string() + ": cannot be opened: Too many levels of symbolic links").c_str(), DataError);
  std::filesystem::remove(loop);
}

TEST_CASE("any_bytes_end_in_data_or_in_an_error") {
  std::mt19937 random(1);
  const std::string alphabet("0123456789,,,..--e \n\n\r\"x\0\xff", 27);
  for (int round = 0; round < 300; ++round) {
    std::string text(random() % 200, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    CHECK_NOTHROW(complaint(text));
  }
}

TEST_CASE("a_split_takes_every_sample_once_by_seed_alone") {
  std::vector<float> features(101);
  std::iota(features.begin(), features.end(), 0.0f);
  const LabelledData data(1, 3, features, std::vector<std::int32_t>(101, 2));
  for (const std::size_t held_out : std::vector<std::size_t>{0, 1, 17, 101}) {
    const Split parts = split(data, held_out, 7);
    CHECK(parts.held_out.size() == held_out);
    CHECK(parts.training.size() == 101 - held_out);
    CHECK(parts.training.classes() == 3);
    std::vector<float> together = read_all(parts.training).features;
    const std::vector<float> rest = read_all(parts.held_out).features;
    together.insert(together.end(), rest.begin(), rest.end());
    std::sort(together.begin(), together.end());
    CHECK(together == features);
    CHECK(read_all(split(data, held_out, 7).held_out).features == rest);
    if (held_out == 17) CHECK(read_all(split(data, held_out, 8).held_out).features != rest);
  }
  CHECK_THROWS_AS(split(data, 102, 7), UsageError);
}

TEST_CASE("inconsistent_samples_are_refused") {
  CHECK_THROWS_AS(LabelledData(2, 3, {1.0f}, {0}), UsageError);
  CHECK_THROWS_AS(LabelledData(1, 3, {1.0f}, {3}), UsageError);
  CHECK_THROWS_AS(LabelledData(1, 3, {1.0f}, {-1}), UsageError);
  const LabelledData data(1, 3, {1.0f}, {2});
  CHECK_THROWS_AS(read_rows(data, {1}), UsageError);
}

TEST_CASE("synthetic_samples_are_functions_of_seed_and_index") {
  const SyntheticData data({.samples = 1000, .columns = 7, .classes = 5, .seed = 3});
  const LabelledBatch all = read_all(data);
  for (const std::size_t row : std::vector<std::size_t>{0, 1, 2, 499, 997, 999}) {
    const LabelledBatch one = read_rows(data, {row});
    CHECK(std::equal(one.features.begin(), one.features.end(),
                     all.features.begin() + static_cast<std::ptrdiff_t>(row * 7)));
    CHECK(one.labels[0] == all.labels[row]);
  }
  CHECK(all.features[1] != all.features[7]);  // rows are not one sequence, shifted
  CHECK(read_all(SyntheticData({.samples = 1000, .columns = 7, .classes = 5, .seed = 4})).features != all.features);
}

TEST_CASE("synthetic_features_are_standard_normal_and_every_class_occurs") {
  const SyntheticData data({.samples = 5000, .columns = 16, .classes = 4, .seed = 1});
  const LabelledBatch all = read_all(data);
  double sum = 0.0;
  double squares = 0.0;
  for (const float value : all.features) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double count = static_cast<double>(all.features.size());
  CHECK(sum / count == doctest::Approx(0.0).epsilon(0.02));
  CHECK(squares / count == doctest::Approx(1.0).epsilon(0.03));
  for (std::int32_t label = 0; label < 4; ++label) CHECK(std::count(all.labels.begin(), all.labels.end(), label) > 100);
  CHECK_THROWS_AS(SyntheticData({.columns = 0}), UsageError);
  CHECK_THROWS_AS(SyntheticData({.classes = 0}), UsageError);
}

}  // namespace labelled_data_test
