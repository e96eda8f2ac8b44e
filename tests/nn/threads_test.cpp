// Products on several threads: the bits of one thread, whatever their number, in sizes that are worth sharing and whose
// rows and columns no number of threads divides.
#include "tessera/nn/threads.hpp"

#include "../sanitizers/sanitizers.hpp"
#include "instruction_sets.hpp"
#include "product_sets.hpp"
#include "src/products/choice.hpp"
#include "src/products/product.hpp"
#include "tessera/nn/linear.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;

namespace threads_test {

// Libraries' bits may follow how a product is cut: then only closeness is promised.
template <typename T>
bool products_are_ours() {
  const ProductSet set = active_product_set();
  if (std::is_same_v<T, bf16> && set == ProductSet::onednn) return false;
  return !std::is_same_v<T, double> && active_float_products() != nullptr;
}

template <typename T>
void check_linear_on_threads() {
  Stream stream = immediate_stream();
  struct Size {
    std::size_t batch, in, out;
  };
  // The second has a depth that is cut or not by how wide a part is; the last is one row, and large.
  for (const Size& size : std::vector<Size>{{67, 301, 499}, {40, 1100, 1000}, {1030, 97, 101}, {1, 1000, 5000}}) {
    CAPTURE(size.batch);
    const std::vector<T> x = random_elements<T>(size.batch * size.in, 1);
    const std::vector<T> weight = random_elements<T>(size.out * size.in, 2);
    const std::vector<T> bias = random_elements<T>(size.out, 3);
    const std::vector<T> dy = random_elements<T>(size.batch * size.out, 4);
    std::vector<float> scratch(linear_scratch<T>(size.batch, size.in, size.out));
    std::vector<T> y, gelu, dx, dweight, dbias;
    const auto run = [&] {
      y = gelu = unset<T>(size.batch * size.out);
      dx = unset<T>(size.batch * size.in);
      dweight = weight;
      dbias = bias;
      const auto vx = matrix(x, size.batch, size.in);
      const auto vweight = matrix(weight, size.out, size.in);
      linear_forward<T>(stream, {.x = vx,
                                 .weight = vweight,
                                 .bias = bias.data(),
                                 .y = matrix(y, size.batch, size.out),
                                 .gelu = matrix(gelu, size.batch, size.out),
                                 .scratch = scratch.data()});
      linear_backward<T>(stream, {.x = vx,
                                  .weight = vweight,
                                  .dy = matrix(dy, size.batch, size.out),
                                  .dx = matrix(dx, size.batch, size.in),
                                  .gelu_x = vx,
                                  .dweight = dweight.data(),
                                  .dbias = dbias.data(),
                                  .accumulate = true,
                                  .scratch = scratch.data()});
      return bytes_of(y, gelu, dx, dweight, dbias);
    };
    if (products_are_ours<T>()) {
      check_same_bits_on_threads(run);
      continue;
    }
    run();
    const std::vector<double> first[] = {widened(y), widened(gelu), widened(dx), widened(dweight), widened(dbias)};
    for (const int threads : {2, 3, 7}) {
      set_threads(threads);
      run();
      const std::vector<T>* const now[] = {&y, &gelu, &dx, &dweight, &dbias};
      for (std::size_t i = 0; i < 5; ++i) check_elements(*now[i], first[i], 100 * tolerance<T>());
    }
    set_threads(1);
  }
  stream.synchronize();
}

// ThreadSanitizer goes through the best set alone: sets differ in what a thread computes, not in who waits for whom.
TEST_CASE_TEMPLATE("linear_has_the_same_bits_on_any_number_of_threads", T, TESSERA_ALL_ELEMENTS) {
  for (const ProductSet set : available_product_sets()) {
    if (TESSERA_THREAD_SANITIZER && set != active_product_set()) continue;
    CAPTURE(to_string(set));
    const WithProducts now(set);
    check_linear_on_threads<T>();
  }
}

TEST_CASE("a_product_of_another_stream_thread_has_helpers_of_its_own") {
  set_threads(2);
  Stream stream(Device::cpu(), {.name = "compute"});
  const std::vector<float> x = random_floats(200 * 300, 1), weight = random_floats(400 * 300, 2);
  std::vector<float> here(200 * 400), there(200 * 400);
  Stream immediate = immediate_stream();
  linear_forward<float>(immediate,
                        {.x = matrix(x, 200, 300), .weight = matrix(weight, 400, 300), .y = matrix(here, 200, 400)});
  linear_forward<float>(stream,
                        {.x = matrix(x, 200, 300), .weight = matrix(weight, 400, 300), .y = matrix(there, 200, 400)});
  stream.synchronize();
  CHECK(here == there);
  set_threads(1);
}

}  // namespace threads_test
