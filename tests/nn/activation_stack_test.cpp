// The stack of activations: what it counts is what it hands out, and misuse is named.
#include "tessera/nn/activation_stack.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/device/arena.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace {

// A block of memory, and a stack on it.
struct Block {
  explicit Block(std::size_t bytes) : arena(Device::cpu(), Bytes(bytes)), stack({arena.data(), bytes}) {}
  Arena arena;
  ActivationStack stack;
};

// Pushes of all sizes and types between marks. Returns used() after each, which is where the next part starts.
std::vector<std::uint64_t> walk(ActivationStack& stack) {
  std::vector<std::uint64_t> used;
  const auto note = [&] { used.push_back(stack.used().count()); };
  stack.push<float>(7), note();
  stack.push<double>(0), note();
  stack.push<bf16>(33), note();
  const Bytes mark = stack.mark();
  stack.push<std::byte>(1), note();
  {
    const ScratchScope scratch(stack);
    stack.push<float>(5, 13), note();
    const ScratchScope inner(stack);
    stack.push<fp16>(64), note();
  }
  note();
  stack.rewind(mark), note();
  stack.push<double>(3, 1), note();
  return used;
}

}  // namespace

TEST_CASE("a_counting_stack_counts_what_a_block_hands_out") {
  ActivationStack counting;
  const std::vector<std::uint64_t> counted = walk(counting);
  CHECK(counted == std::vector<std::uint64_t>{64, 64, 192, 256, 576, 704, 256, 192, 256});
  CHECK(counting.counts_only());
  Block block(counting.peak().count());
  CHECK(walk(block.stack) == counted);
  CHECK_FALSE(block.stack.counts_only());
  CHECK(block.stack.peak() == counting.peak());
  CHECK(counting.peak() == Bytes(704));
}

TEST_CASE("parts_start_where_the_count_says_and_on_64_bytes") {
  Block block(4096);
  ActivationStack counting;
  for (const std::size_t count : std::vector<std::size_t>{1, 0, 3, 16, 17, 101, 5}) {
    const auto offset = static_cast<std::ptrdiff_t>(counting.used().count());
    const std::span<float> part = block.stack.push<float>(count);
    CHECK(reinterpret_cast<std::byte*>(part.data()) - block.arena.data() == offset);
    CHECK(reinterpret_cast<std::uintptr_t>(part.data()) % 64 == 0);
    CHECK(part.size() == count);
    CHECK(counting.push<float>(count).size() == count);
    CHECK(counting.push<float>(0).data() == nullptr);
  }
  const MatrixView<bf16> matrix = block.stack.push<bf16>(3, 5);
  CHECK(matrix.data != nullptr);
  CHECK(matrix.rows == 3);
  CHECK(matrix.columns == 5);
}

TEST_CASE("parts_for_cuda_devices_start_on_256_bytes") {
  ActivationStack counting(DeviceKind::cuda);
  for (const std::size_t count : std::vector<std::size_t>{1, 0, 3, 64, 65}) {
    const std::uint64_t before = counting.used().count();
    counting.push<float>(count);
    CHECK(counting.used().count() == before + (count * sizeof(float) + 255) / 256 * 256);
  }
  Arena arena(Device::cpu(), Bytes(1024));
  CHECK_THROWS_AS(ActivationStack({arena.data() + 64, 512}, DeviceKind::cuda), UsageError);
}

TEST_CASE("what_was_given_back_is_handed_out_again") {
  Block block(256);
  float* first = block.stack.push<float>(4).data();
  const Bytes mark = block.stack.mark();
  float* second = block.stack.push<float>(4).data();
  block.stack.rewind(mark);
  CHECK(block.stack.push<float>(32).data() == second);
  CHECK(second == first + 16);
  CHECK(block.stack.peak() == Bytes(192));
}

TEST_CASE("a_full_block_names_the_bytes_and_stays_as_it_was") {
  Block block(192);
  block.stack.push<float>(17);
  CHECK_THROWS_WITH_AS(block.stack.push<float>(17),
                       "activation stack: 256 bytes are needed, but the block has 192; plan it with a counting stack "
                       "for the largest batch",
                       UsageError);
  CHECK(block.stack.used() == Bytes(128));
  CHECK(block.stack.peak() == Bytes(128));
  CHECK(block.stack.push<float>(16).size() == 16);  // just fits
}

TEST_CASE("a_mark_above_the_top_is_refused") {
  ActivationStack counting;
  counting.push<float>(1);
  CHECK_THROWS_WITH_AS(counting.rewind(Bytes(128)), "activation stack: rewound to 128 bytes, but only 64 are in use",
                       InternalError);
  counting.rewind(Bytes(64));
  CHECK(counting.used() == Bytes(64));
}

TEST_CASE("memory_that_does_not_start_on_64_bytes_is_refused") {
  Block block(256);
  CHECK_THROWS_AS(ActivationStack({block.arena.data() + 4, 128}), UsageError);
  CHECK_THROWS_AS(ActivationStack(std::span<std::byte>()), UsageError);
}
