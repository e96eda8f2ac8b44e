// Results so large that they go past the caches have the bits of small ones, and end where they should.
#include <algorithm>
#include <cstring>

#include "cases.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/kernels/reduce.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr std::size_t count =
    (std::size_t{2} << 20) / 2 + 37;  // 2 MiB of the smallest element, and not all vectors whole
constexpr std::size_t piece = 1000;

// Aligned to a page, and one element beside it; followed by what must stay.
template <typename T>
class Large {
 public:
  explicit Large(bool aligned)
      : memory_(Device::cpu(), Bytes((count + 2) * sizeof(T))), data_(first() + (aligned ? 0 : 1)) {
    std::memset(memory_.data(), 0x5a, memory_.size().count());
  }
  T* data() { return data_; }
  std::vector<T> values() const { return {data_, data_ + count}; }
  bool end_intact() const {
    std::uint32_t pattern = 0x5a5a5a5a;
    return std::memcmp(data_ + count, &pattern, sizeof(T)) == 0;
  }

 private:
  T* first() { return reinterpret_cast<T*>(memory_.data()); }
  Arena memory_;
  T* data_;
};

template <typename To, typename From>
void check_casts() {
  Stream stream(Device::cpu(), {.mode = StreamMode::immediate});
  const std::vector<From> from = rounded<From>(numbers_and_patterns(count, 91));
  for (const bool aligned : {true, false}) {
    Large<To> whole(aligned);
    std::vector<To> pieces(count);
    kernels::cast(stream, {whole.data(), dtype_of<To>}, {from.data(), dtype_of<From>}, count);
    for (std::size_t at = 0; at < count; at += piece) {
      kernels::cast(stream, {pieces.data() + at, dtype_of<To>}, {from.data() + at, dtype_of<From>},
                    std::min(piece, count - at));
    }
    CHECK(differences(whole.values(), pieces) == 0);
    CHECK(whole.end_intact());
  }
}

}  // namespace

TEST_CASE_TEMPLATE("large casts have the bits of small ones", T, bf16, fp16) {
  with_each_instruction_set([] {
    check_casts<T, float>();
    check_casts<float, T>();
  });
}

TEST_CASE_TEMPLATE("masters that an update rounds past the caches are those it rounds in pieces", T, bf16, fp16) {
  const std::vector<float> masters = numbers(count, 96), gradients = numbers_and_patterns(count, 97);
  const kernels::StepScalars scalars;
  Stream stream(Device::cpu(), {.mode = StreamMode::immediate});
  with_each_instruction_set([&] {
    for (const bool adam : {true, false}) {
      Large<T> whole(true);
      std::vector<T> pieces(count);
      std::vector<float> first(count), second(count), master;
      const auto update = [&](T* to, std::size_t at, std::size_t elements) {
        const kernels::Target halves{to + at, dtype_of<T>};
        float* const of = master.data() + at;
        const float* const gradient = gradients.data() + at;
        if (adam) {
          kernels::adamw(stream, {of, first.data() + at, second.data() + at, gradient, elements, halves},
                         {.learning_rate = 0.1f,
                          .beta1 = 0.9f,
                          .beta2 = 0.9f,
                          .epsilon = 1e-8f,
                          .weight_decay = 0.01f,
                          .own_decays = true},
                         &scalars);
        } else {
          kernels::sgd(stream, {of, nullptr, gradient, elements, halves}, {0.1f, 0.0f, 0.01f, false}, &scalars);
        }
      };
      master = masters;
      update(whole.data(), 0, count);
      first.assign(count, 0.0f);
      second.assign(count, 0.0f);
      master = masters;
      for (std::size_t at = 0; at < count; at += piece) update(pieces.data(), at, std::min(piece, count - at));
      CHECK(differences(whole.values(), pieces) == 0);
      CHECK(whole.end_intact());
    }
  });
}

TEST_CASE_TEMPLATE("large sums have the bits of small ones", T, float, bf16) {
  const std::vector<T> parts[] = {rounded<T>(numbers(count, 92)), rounded<T>(numbers(count, 93)),
                                  rounded<T>(numbers(count, 94))};
  with_each_instruction_set([&] {
    Large<float> whole(true);
    std::vector<float> pieces(count);
    const auto sum = [&](float* to, std::size_t at, std::size_t elements) {
      const void* pointers[] = {parts[0].data() + at, parts[1].data() + at, parts[2].data() + at};
      kernels::ranked_sum_cpu(
          {.contributions = pointers, .type = dtype_of<T>, .result = to + at, .count = elements, .divisor = 3.0f});
    };
    sum(whole.data(), 0, count);
    for (std::size_t at = 0; at < count; at += piece) sum(pieces.data(), at, std::min(piece, count - at));
    CHECK(bit_differences(whole.values(), pieces) == 0);
    CHECK(whole.end_intact());
  });
}

TEST_CASE("copies of any size and place copy every byte and none more") {
  const std::vector<bf16> from = rounded<bf16>(numbers_and_patterns(count, 95));
  with_each_instruction_set([&] {
    for (const bool aligned : {true, false}) {
      for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{33}, count}) {
        Large<bf16> to(aligned);
        const Large<bf16> before(aligned);
        kernels::copy_cpu(to.data(), from.data(), Bytes(2 * elements));
        std::vector<bf16> expected = before.values();
        std::copy_n(from.begin(), elements, expected.begin());
        CHECK(std::memcmp(to.data(), expected.data(), 2 * count) == 0);
        CHECK(to.end_intact());
      }
    }
  });
}
