// A build without oneDNN.
#include "products/contestants.hpp"

namespace bench {

std::optional<std::function<void()>> onednn_product(const PlainProduct&, int) { return std::nullopt; }

std::string onednn_in_words() { return "without oneDNN"; }

}  // namespace bench
