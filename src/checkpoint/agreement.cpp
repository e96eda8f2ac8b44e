// Turns one rank's failure into an error on every rank.
#include "checkpoint/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/error.hpp"

namespace tessera::checkpoint {

namespace {

// What a rank tells the others: a text that ends with a zero byte; empty when it did not fail.
using Outcome = std::array<char, 1024>;

Outcome outcome_of(std::exception_ptr failure) {
  Outcome outcome{};
  if (!failure) return outcome;
  std::string text = "failed";
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    if (*error.what() != '\0') text = error.what();
  } catch (...) {
    text = "failed with something that is not an exception";
  }
  std::memcpy(outcome.data(), text.data(), std::min(text.size(), outcome.size() - 1));
  return outcome;
}

}  // namespace

void run_together(const Gather& gather, const std::function<void()>& work) {
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  const Outcome mine = outcome_of(failure);
  const std::vector<std::byte> all = gather(std::as_bytes(std::span(mine)));
  if (failure) std::rethrow_exception(failure);
  for (std::size_t rank = 0; rank * sizeof(Outcome) < all.size(); ++rank) {
    Outcome outcome{};
    std::memcpy(outcome.data(), all.data() + rank * sizeof(Outcome), sizeof(Outcome));
    if (outcome[0] != '\0') throw DataError(fmt::format("{} (on rank {})", outcome.data(), rank));
  }
}

void run_together(World& world, std::string_view label, const std::function<void()>& work) {
  run_together([&](std::span<const std::byte> mine) { return world.gather(mine, label); }, work);
}

}  // namespace tessera::checkpoint
