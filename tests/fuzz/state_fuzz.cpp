// state.json.
#include "fuzz.hpp"
#include "tessera/checkpoint/state.hpp"

void fuzz::read_input(std::string_view input) {
  const std::string again = compose(tessera::parse_state(input, "state.json"));
  // Texts are compared, because NaN is not equal to itself.
  require(compose(tessera::parse_state(again, "state.json")) == again, "a state does not come back as it was");
}
