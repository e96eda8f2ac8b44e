// Sampling from logits, and text for terminals.
#include "trainer/gpt/text.hpp"

#include <algorithm>
#include <cmath>

#include "tessera/base/philox.hpp"

namespace train_gpt {

namespace {

// Bytes of the UTF-8 sequence that begins here; 0 when none does. (RFC 3629, but for surrogates.)
std::size_t utf8_length(std::span<const std::int32_t> bytes) {
  const std::int32_t first = bytes.front();
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length == 0 || length > bytes.size()) return 0;
  const auto continues = [](std::int32_t byte) { return byte >= 0x80 && byte < 0xc0; };
  if (!std::all_of(bytes.begin() + 1, bytes.begin() + static_cast<std::ptrdiff_t>(length), continues)) return 0;
  const bool overlong = length > 2 && (first & 0xf) == 0 && bytes[1] < (length == 3 ? 0xa0 : 0x90);
  const bool control = length == 1 && (first < ' ' || first == 0x7f) && first != '\n';
  const bool late_control = length == 2 && first == 0xc2 && bytes[1] < 0xa0;
  return overlong || control || late_control ? 0 : length;
}

}  // namespace

std::int32_t choose_token(std::span<const float> logits, double temperature, double uniform) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0.0) return static_cast<std::int32_t>(largest - logits.begin());
  const auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - static_cast<double>(*largest)) / temperature);
  };
  double sum = 0.0;
  for (const float logit : logits) sum += weight(logit);
  double left = uniform * sum;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    left -= weight(logits[token]);
    if (left < 0.0) return static_cast<std::int32_t>(token);
  }
  return static_cast<std::int32_t>(largest - logits.begin());  // rounding left nothing: any likely token will do
}

double uniform_number(std::uint64_t seed, std::uint64_t step, std::uint32_t index) {
  const auto low = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
  const tessera::PhiloxCounter counter = {index, low(step), low(step >> 32), 0x74657874};  // "text"
  const tessera::PhiloxCounter words = tessera::philox(counter, {low(seed), low(seed >> 32)});
  return static_cast<double>(words[0]) * 0x1p-32;
}

std::vector<std::int32_t> tokens_of(std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string printable(std::span<const std::int32_t> bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t length = utf8_length(bytes);
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>(bytes[i]);
    if (length == 0) text += "�";
    bytes = bytes.subspan(std::max<std::size_t>(length, 1));
  }
  return text;
}

std::string indented(std::string_view text, std::string_view before) {
  std::string result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (begin > 0) result += '\n';
    result.append(before).append(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

}  // namespace train_gpt
