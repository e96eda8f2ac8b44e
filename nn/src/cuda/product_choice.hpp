// Which of the algorithms that cuBLASLt proposes for a product computes it, and with which bits: the first; or the
// fastest, timed once, which a log then holds; or what such a log names.
#pragma once

#include <cstddef>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "src/cuda/product.hpp"

namespace tessera::nn::cuda {

// All that the proposals depend on, but for the device and cuBLASLt's release: no address is in it.
std::string in_words(const Product& product);

// Thread safety: any thread may choose. Threads that time the same product at once agree on the first answer.
class ProductChoices {
 public:
  static constexpr std::size_t most = 8;  // proposals that are timed

  // `wish`: "first", "timed", or the path of a log with lines of a run that timed. Throws UsageError when it is neither
  // of the two nor a file that can be read. What is timed becomes a line of `log`.
  ProductChoices(const std::string& wish, std::FILE* log);

  // How many proposals to ask for.
  std::size_t wanted() const { return kind_ == Kind::first ? 1 : most; }

  // One of `count` proposals. seconds(i) measures the i-th, infinity where it does not run; it is called where products
  // are timed, and without a lock, since it waits for other ranks' work. Products that no line of a log names get the
  // first. Throws UsageError when the log names one that is not proposed here.
  std::size_t choose(const std::string& product, std::size_t count, const std::function<double(std::size_t)>& seconds);

  std::string in_words() const;  // such as "first proposals", for a line about the run

 private:
  enum class Kind { first, timed, named };

  void read(const std::string& path);
  std::size_t fix(const std::string& product, std::size_t fastest, const std::string& line);

  Kind kind_;
  std::string path_;
  std::FILE* log_;
  std::mutex mutex_;
  std::map<std::string, std::size_t> chosen_;
};

// Returns the choices that the environment variable TESSERA_CUDA_PRODUCTS wishes, "first" without it; the log is
// stderr. Throws UsageError when the variable is wrong.
ProductChoices& product_choices();

}  // namespace tessera::nn::cuda
