// Products of every set that this processor has: right, and what strategies need of them, which is the same bits for
// the same product wherever its matrices stand, and whoever multiplies at the same time.
#include "src/products/choice.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <thread>

#include "instruction_sets.hpp"
#include "product_sets.hpp"
#include "src/gemm.hpp"
#include "src/products/onednn.hpp"
#include "src/products/product.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/processor.hpp"
#include "tessera/nn/threads.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace products_test {

struct Case {
  std::size_t m, n, k;
  bool ta, tb, add;
};

using Extents = std::vector<std::array<std::size_t, 3>>;
const Extents some_extents = {{1, 1, 1},   {1, 53, 97},   {53, 1, 97},   {53, 97, 1},
                              {7, 64, 33}, {33, 65, 129}, {64, 515, 40}, {101, 67, 531}};
// The last ones are around those of a tile.
const Extents more_extents = {{7, 5, 3},     {0, 3, 4},   {3, 0, 4},       {3, 4, 0},    {64, 10, 128}, {13, 97, 64},
                              {101, 67, 31}, {5, 128, 7}, {128, 128, 128}, {5, 7, 1031}, {513, 3, 13},  {2, 515, 512}};

std::vector<Case> cases(const Extents& all) {
  std::vector<Case> result;
  for (const auto& [m, n, k] : all) {
    for (const int bits : {0, 1, 2, 3, 4, 5, 6, 7}) {
      result.push_back({m, n, k, bits % 2 != 0, bits / 2 % 2 != 0, bits / 4 != 0});
    }
  }
  return result;
}

// A matrix some elements behind a multiple of 4096 bytes, in rows with a gap.
template <typename T>
class Placed {
 public:
  Placed(const std::vector<T>& values, std::size_t columns, std::size_t gap, std::size_t offset)
      : columns_(columns),
        stride_(columns + gap),
        memory_((columns == 0 ? 0 : values.size() / columns) * stride_ + offset + 4096 / sizeof(T)) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data());
    data_ = memory_.data() + ((begin + 4095) / 4096 * 4096 - begin) / sizeof(T) + offset;
    for (std::size_t i = 0; i < values.size(); ++i) data_[i / columns * stride_ + i % columns] = values[i];
    count_ = values.size();
  }
  T* data() { return data_; }
  std::size_t stride() const { return stride_; }
  std::vector<T> values() const {
    std::vector<T> result(count_);
    for (std::size_t i = 0; i < count_; ++i) result[i] = data_[i / columns_ * stride_ + i % columns_];
    return result;
  }

 private:
  std::size_t columns_, stride_, count_ = 0;
  std::vector<T> memory_;
  T* data_;
};

template <typename T>
std::vector<T> product(const Case& of, std::size_t gap = 0, std::size_t offset = 0) {
  Placed<T> a(random_elements<T>(of.m * of.k, 1), of.ta ? of.m : of.k, gap, offset);
  Placed<T> b(random_elements<T>(of.k * of.n, 2), of.tb ? of.k : of.n, 2 * gap, 3 * offset);
  Placed<T> c(of.add ? random_elements<T>(of.m * of.n, 3) : unset<T>(of.m * of.n), of.n, gap, 5 * offset);
  std::vector<float> scratch(gemm_scratch<T>(of.m, of.n, of.k) + 1, 7.25f);
  gemm<T>({.a = {a.data(), of.ta, a.stride()},
           .b = {b.data(), of.tb, b.stride()},
           .c = c.data(),
           .m = of.m,
           .n = of.n,
           .k = of.k,
           .add = of.add,
           .c_stride = c.stride(),
           .scratch = scratch.data()});
  if (scratch.back() != 7.25f) FAIL_CHECK("written behind the scratch memory");
  return c.values();
}

template <typename T>
std::vector<double> expected(const Case& of) {
  const std::vector<double> a = widened(random_elements<T>(of.m * of.k, 1));
  const std::vector<double> b = widened(random_elements<T>(of.k * of.n, 2));
  std::vector<double> c(of.m * of.n);
  if (of.add) c = widened(random_elements<T>(of.m * of.n, 3));
  for (std::size_t i = 0; i < of.m; ++i) {
    for (std::size_t j = 0; j < of.n; ++j) {
      for (std::size_t p = 0; p < of.k; ++p) {
        c[i * of.n + j] += a[of.ta ? p * of.m + i : i * of.k + p] * b[of.tb ? j * of.k + p : p * of.n + j];
      }
    }
  }
  return c;
}

TEST_CASE_TEMPLATE("products_of_every_set_are_right_and_rounded_once", T, float, double, bf16, fp16) {
  for (const Extents& extents : {some_extents, more_extents}) {
    for (const Case& each : cases(extents)) {
      CAPTURE(each.m);
      CAPTURE(each.n);
      CAPTURE(each.k);
      const std::vector<double> wanted = expected<T>(each);
      for (const ProductSet set : available_product_sets()) {
        CAPTURE(to_string(set));
        const WithProducts now(set);
        check_stored(product<T>(each), wanted, std::sqrt(static_cast<double>(each.k + 1)));
        check_stored(product<T>(each, 3, 1), wanted, std::sqrt(static_cast<double>(each.k + 1)));
      }
    }
  }
}

// Parameters and gradients stand at other places under the one strategy and the other.
TEST_CASE_TEMPLATE("where_matrices_stand_does_not_change_the_bits_of_any_set", T, float, bf16, fp16) {
  for (const ProductSet set : available_product_sets()) {
    CAPTURE(to_string(set));
    const WithProducts now(set);
    for (const Case& each : cases(some_extents)) {
      const std::string first = bytes_of(product<T>(each));
      for (const std::size_t offset : {1u, 2u, 4u, 8u, 16u, 31u, 272u, 512u, 1008u}) {
        CHECK((bytes_of(product<T>(each, 0, offset)) == first));
      }
    }
  }
}

// The products are the three of a layer and a small one.
template <typename T>
void check_ranks_at_once() {
  const std::vector<Case> all{{61, 257, 131, false, true, false},
                              {131, 257, 61, true, false, false},
                              {61, 131, 257, false, false, false},
                              {5, 64, 10, true, false, true}};
  std::vector<std::string> alone;
  for (const Case& each : all) alone.push_back(bytes_of(product<T>(each)));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> ranks;
  for (int& mine : wrong) {
    ranks.emplace_back([&] {
      for (std::size_t round = 0; round < 40; ++round)
        mine += bytes_of(product<T>(all[round % all.size()])) == alone[round % all.size()] ? 0 : 1;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("ranks_that_multiply_at_the_same_time_get_the_same_bits_of_any_set") {
  for (const ProductSet set : available_product_sets()) {
    CAPTURE(to_string(set));
    const WithProducts now(set);
    check_ranks_at_once<bf16>();
    for (const int threads : {2, 1}) {
      set_threads(threads);
      check_ranks_at_once<float>();
    }
  }
}

// The thread's setting is the user's, who may well use OpenMP.
TEST_CASE("onednn_leaves_the_threads_of_openmp_as_they_were") {
  if (!onednn::available()) return;
  auto* const most = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  auto* const set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (most == nullptr || set == nullptr) return;
  const int before = most();
  set(3);
  const WithProducts now(ProductSet::onednn);
  product<bf16>({200, 300, 400, false, true, false});
  CHECK(most() == 3);
  set(before);
}

TEST_CASE("more_products_than_are_remembered_are_right") {
  if (!onednn::available()) return;
  const WithProducts now(ProductSet::onednn);
  for (std::size_t k = 1; k <= 530; ++k) {
    const Case each{3, 2, k, false, false, false};
    check_stored(product<bf16>(each), expected<bf16>(each), std::sqrt(static_cast<double>(k + 1)));
  }
}

TEST_CASE("what_multiplies_is_said") {
  for (const ProductSet set : available_product_sets()) {
    const WithProducts now(set);
    const std::string text = computed_with();
    CAPTURE(text);
    const auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
    CHECK(says("of bf16 by oneDNN") == (set == ProductSet::onednn));
    CHECK(says("of bf16 for AVX512_BF16") == (set == ProductSet::avx512_bf16));
    CHECK(says("of bf16 as fp32") == (set != ProductSet::onednn && set != ProductSet::avx512_bf16));
    CHECK(says("of fp32 for AVX2") == (set == ProductSet::avx2));
    const bool is_wider = find_float_products(tessera::kernels::InstructionSet::avx512) != nullptr;
    CHECK(says("of fp32 for AVX-512") == (is_wider && set > ProductSet::avx2));
  }
}

// Some set is always there; which are not depends on the machine.
TEST_CASE("a_set_that_is_not_there_is_refused") {
  const std::vector<ProductSet> available = available_product_sets();
  CHECK(available.front() == ProductSet::openblas);
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  CHECK((std::count(available.begin(), available.end(), ProductSet::avx2) == 1) == has_avx2);
#endif
  for (const ProductSet set : {ProductSet::avx2, ProductSet::avx512, ProductSet::avx512_bf16, ProductSet::onednn}) {
    if (std::find(available.begin(), available.end(), set) != available.end()) continue;
    CHECK_THROWS_WITH_AS(select_product_set(set), doctest::Contains("available: openblas"), UsageError);
  }
}

}  // namespace products_test
