// Reads and writes what products are computed by.
#include "src/cuda/product_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/base/error.hpp"

namespace tessera::nn::cuda {

namespace {

constexpr const char* variable = "TESSERA_CUDA_PRODUCTS";
constexpr std::string_view line_begin = "tessera: product ";
constexpr std::string_view before_number = ": algorithm ";

std::string_view type_in_words(const Product& p) {
  switch (p.format) {
    case Format::fp32: return p.tf32 ? "tf32" : "fp32";
    case Format::bf16: return p.d_in_fp32 ? "bf16_fp32" : "bf16";
    case Format::fp16: return p.d_in_fp32 ? "fp16_fp32" : "fp16";
    case Format::fp64: break;
  }
  throw InternalError("a product of doubles was asked for on a CUDA device");
}

std::string_view epilogue_in_words(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none: return "plain";
    case Epilogue::bias: return "bias";
    case Epilogue::gelu_bias: return "gelu_bias";
    case Epilogue::gelu_gradient: return "gelu_gradient";
    case Epilogue::bias_gradient: return "bias_gradient";
  }
  throw InternalError("a product with an unknown epilogue");
}

// Says what is added, where it stands.
std::string added_in_words(const Product& p) {
  if (p.added.data == nullptr) return "";
  return p.added.data == p.d.data ? " in place" : fmt::format(" added {}", p.added.leading);
}

// Not how many there are: all batches of a shape have one algorithm.
std::string batch_in_words(const ProductBatch& batch) {
  if (batch.most == 1) return "";
  return fmt::format(" batches of {} at most, steps {} {} {}", batch.most, batch.a_step, batch.b_step, batch.d_step);
}

// Product and number of a line, wherever in it they begin: logs may put a time before.
std::optional<std::pair<std::string, std::size_t>> parsed(std::string_view line) {
  const std::size_t begin = line.find(line_begin);
  const std::size_t middle = line.find(before_number);
  if (begin == line.npos || middle == line.npos || middle < begin + line_begin.size()) return std::nullopt;
  const std::string_view number = line.substr(middle + before_number.size());
  std::size_t nth = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), nth);
  if (error != std::errc() || nth == 0) return std::nullopt;
  return std::pair(std::string(line.substr(begin + line_begin.size(), middle - begin - line_begin.size())), nth - 1);
}

}  // namespace

std::string in_words(const Product& p) {
  const std::array<const void*, 7> data{p.a.data,   p.b.data, p.added.data,    p.d.data,
                                        p.aux.data, p.vector, p.workspace.data};
  std::vector<std::uint32_t> alignments;
  for (const void* each : data) alignments.push_back(alignment_of(each));
  return fmt::format("{} {}{} {}x{}x{} strides {} {} {} {}{} {} aligned {} workspace {}", type_in_words(p),
                     p.a.transposed ? 't' : 'n', p.b.transposed ? 't' : 'n', p.d.rows, p.d.columns,
                     p.a.transposed ? p.a.rows : p.a.columns, p.a.leading, p.b.leading, p.d.leading, p.aux.leading,
                     added_in_words(p), epilogue_in_words(p.epilogue), fmt::join(alignments, ","), p.workspace.bytes) +
         batch_in_words(p.batch);
}

ProductChoices::ProductChoices(const std::string& wish, std::FILE* log) : kind_(Kind::first), log_(log) {
  if (wish == "first") return;
  kind_ = wish == "timed" ? Kind::timed : Kind::named;
  if (kind_ == Kind::named) read(wish);
}

// The first of two lines about a product counts: in a job of processes, whose ranks may have fixed others, all take
// one.
void ProductChoices::read(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (auto found = parsed(line)) chosen_.insert(std::move(*found));
  }
  if (!file.eof()) {
    throw UsageError(
        fmt::format("{}=\"{}\": neither \"first\" nor \"timed\", nor the log of a run with \"timed\" that can be read",
                    variable, path));
  }
  path_ = path;
}

std::size_t ProductChoices::choose(const std::string& product, std::size_t count,
                                   const std::function<double(std::size_t)>& seconds) {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = chosen_.find(product);
    if (found != chosen_.end() && found->second < count) return found->second;
    if (found != chosen_.end()) {
      throw UsageError(
          fmt::format("{}=\"{}\": it names algorithm {} for the product {}, of which cuBLASLt proposes {} "
                      "here: the log is of another release or another kind of device",
                      variable, path_, found->second + 1, product, count));
    }
  }
  if (kind_ != Kind::timed || count < 2) return 0;
  std::vector<double> measured;
  for (std::size_t i = 0; i < count; ++i) measured.push_back(seconds(i));
  std::size_t fastest = 0;
  for (std::size_t i = 1; i < count; ++i) {
    if (measured[i] < measured[fastest]) fastest = i;
  }
  return fix(product, fastest,
             fmt::format("{}{}{}{} of {}, {:.3g} us, the first {:.3g}\n", line_begin, product, before_number,
                         fastest + 1, count, measured[fastest] * 1e6, measured[0] * 1e6));
}

std::size_t ProductChoices::fix(const std::string& product, std::size_t fastest, const std::string& line) {
  const std::scoped_lock lock(mutex_);
  const auto [place, is_new] = chosen_.emplace(product, fastest);
  if (is_new) std::fputs(line.c_str(), log_);
  return place->second;
}

std::string ProductChoices::in_words() const {
  switch (kind_) {
    case Kind::first: return "the first proposals";
    case Kind::timed: return "the fastest of eight proposals";
    case Kind::named: return fmt::format("the proposals that {} names", path_);
  }
  throw InternalError("products are chosen in an unknown way");
}

ProductChoices& product_choices() {
  const auto wish = [] {
    const char* const value = std::getenv(variable);
    return std::string(value == nullptr ? "first" : value);
  };
  static ProductChoices choices(wish(), stderr);
  return choices;
}

}  // namespace tessera::nn::cuda
