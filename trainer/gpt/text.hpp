// Text that a model of bytes writes: the choice of each byte, and what a terminal may be shown of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace train_gpt {

// The token at which the cumulated probabilities softmax(logits / temperature) pass `uniform`, from [0, 1); the first
// of the likeliest for a temperature of 0. Sums are formed in double, in order.
std::int32_t choose_token(std::span<const float> logits, double temperature, double uniform);

// A number in [0, 1) that depends on nothing but its arguments.
double uniform_number(std::uint64_t seed, std::uint64_t step, std::uint32_t index);

std::vector<std::int32_t> tokens_of(std::string_view text);

// UTF-8 as it is, but without control characters; every other byte as "�".
std::string printable(std::span<const std::int32_t> bytes);

// Each line after `margin`.
std::string indented(std::string_view text, std::string_view margin);

}  // namespace train_gpt
