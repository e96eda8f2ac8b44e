// The index of tensors that are split over files.
#include "fuzz.hpp"
#include "tessera/checkpoint/tensor_index.hpp"

void fuzz::read_input(std::string_view input) {
  const tessera::TensorIndex index = tessera::parse_tensor_index(input, "index.json");
  require(tessera::parse_tensor_index(compose(index), "index.json") == index, "an index does not come back as it was");
}
