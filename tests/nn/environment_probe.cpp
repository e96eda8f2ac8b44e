// Says whose products are in use.
#include "../kernels/environment_probe.hpp"
#include "src/products/choice.hpp"

int main() { return say(tessera::nn::active_product_set); }
