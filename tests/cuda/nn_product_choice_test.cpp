// Which proposal computes a product: timed once, written into a log, and given back.
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../checkpoint/temporary_folder.hpp"
#include "nn_device.hpp"
#include "src/cuda/product_choice.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::test;
using tessera::nn::Format;
using tessera::nn::cuda::ColumnMajor;
using tessera::nn::cuda::Epilogue;
using tessera::nn::cuda::Product;
using tessera::nn::cuda::ProductChoices;

namespace nn_product_choice_test {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

// Measures what a test says, and counts.
struct Timings {
  std::vector<double> seconds;
  std::size_t taken = 0;

  std::size_t choose(ProductChoices& choices, const std::string& product) {
    return choices.choose(product, seconds.size(), [this](std::size_t i) { return ++taken, seconds[i]; });
  }
};

TEST_CASE("of a product's proposals the fastest is timed once, and a log names it again") {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "log";
  Timings fast_third{{3e-4, 2e-4, 1e-4, std::numeric_limits<double>::infinity()}};
  {
    const File log(std::fopen(path.c_str(), "w"));
    std::fputs("step 1: loss 10.9\n12:00:01 ", log.get());
    ProductChoices timed("timed", log.get());
    CHECK(timed.wanted() == 8);
    CHECK(fast_third.choose(timed, "bf16 tn 1x2x3") == 2);
    CHECK(fast_third.choose(timed, "bf16 tn 1x2x3") == 2);
    CHECK(fast_third.taken == 4);
    Timings alone{{1.0}};
    CHECK(alone.choose(timed, "bf16 tn 4x5x6") == 0);
    CHECK(alone.taken == 0);
  }
  ProductChoices named(path, stderr);
  Timings fast_first{{1e-4, 2e-4, 3e-4}};
  CHECK(fast_first.choose(named, "bf16 tn 1x2x3") == 2);
  CHECK(fast_first.choose(named, "bf16 tn 7x8x9") == 0);
  CHECK(fast_first.taken == 0);
  Timings too_few{{1e-4, 2e-4}};
  CHECK_THROWS_WITH_AS(too_few.choose(named, "bf16 tn 1x2x3"),
                       doctest::Contains("names algorithm 3 for the product bf16 tn 1x2x3"), UsageError);
}

TEST_CASE("products have the first proposal unless something is wished, and wishes are first, timed or a log") {
  ProductChoices first("first", stderr);
  Timings fast_second{{2e-4, 1e-4}};
  CHECK(first.wanted() == 1);
  CHECK(fast_second.choose(first, "bf16 tn 1x2x3") == 0);
  CHECK(fast_second.taken == 0);
  CHECK_THROWS_WITH_AS(ProductChoices("quick", stderr),
                       doctest::Contains("TESSERA_CUDA_PRODUCTS=\"quick\": neither \"first\" nor \"timed\""),
                       UsageError);
}

TEST_CASE("products that differ in what a proposal depends on have different words") {
  alignas(256) static std::byte memory[512];
  const ColumnMajor matrix{memory, 8, 8, 8};
  const Product plain{.format = Format::bf16, .a = matrix, .b = matrix, .d = matrix};
  std::vector<Product> all(8, plain);
  all[1].added = plain.d;
  all[2].added = {memory + 256, 8, 8, 8};
  all[3].a.transposed = true;
  all[4].epilogue = Epilogue::bias;
  all[5].b.data = memory + 16;
  all[6].format = Format::fp16;
  all[7].workspace = {memory, 64};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK(in_words(all[i]) != in_words(all[j]));
  }
  Product elsewhere = plain;
  elsewhere.a.data = memory + 256;
  CHECK(in_words(elsewhere) == in_words(plain));
}

}  // namespace nn_product_choice_test
