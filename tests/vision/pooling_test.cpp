// Pooling against plain loops and central differences, at sizes that divide nothing.
#include "tessera/vision/pooling.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "instruction_sets.hpp"
#include "reference.hpp"
#include "tessera/base/error.hpp"
#include "tessera/nn/threads.hpp"
#include "typed.hpp"

using namespace tessera;
using namespace tessera::nn;
using namespace tessera::vision;

namespace pooling_test {

struct Form {
  PoolShape shape;
  std::size_t images;
  HeightWidth image;
  std::size_t channels;
};

const std::vector<Form>& forms() {
  static const std::vector<Form> all{
      {{.kernel = 2}, 2, {4, 6}, 3},
      {{.kernel = 2}, 1, {5, 7}, 2},  // a line and a column are seen by nobody
      {{.kernel = 3, .stride = 2, .padding = 1}, 2, {7, 8}, 70},
      {{.kernel = {2, 3}, .stride = 1, .padding = {0, 1}}, 3, {3, 5}, 1},
      {{.kernel = 1, .stride = 2}, 1, {3, 3}, 4},
      {{.kernel = 5, .stride = 3, .padding = 2}, 1, {11, 13}, 17},
      {{.kernel = 2}, 0, {4, 4}, 3},
  };
  return all;
}

template <typename T>
struct Pool {
  explicit Pool(const Form& of)
      : form(of),
        size(of.shape.output(of.image)),
        x(random_elements<T>(of.images * of.image.height * of.image.width * of.channels, 1)),
        dy(random_elements<T>(of.images * size.height * size.width * of.channels, 2)),
        y(unset<T>(dy.size())),
        dx(unset<T>(x.size())),
        places(dy.size(), 255) {}

  template <typename V>
  ImageView<V> in(std::vector<std::remove_const_t<V>>& data) const {
    return {data.data(), form.images, form.image.height, form.image.width, form.channels};
  }
  template <typename V>
  ImageView<V> out(std::vector<std::remove_const_t<V>>& data) const {
    return {data.data(), form.images, size.height, size.width, form.channels};
  }
  void max_forward() { max_pool_forward<T>(stream, form.shape, in<const T>(x), out<T>(y), places.data()); }
  void max_backward() { max_pool_backward<T>(stream, form.shape, out<const T>(dy), places.data(), in<T>(dx)); }
  void average_forward() { average_pool_forward<T>(stream, form.shape, in<const T>(x), out<T>(y)); }
  void average_backward() { average_pool_backward<T>(stream, form.shape, out<const T>(dy), in<T>(dx)); }

  // function(index of y, index of x) for each pixel that a window sees.
  template <typename Function>
  void for_each_seen(const Function& function) const {
    for (std::size_t n = 0; n < form.images; ++n)
      for (std::size_t oy = 0; oy < size.height; ++oy)
        for (std::size_t ox = 0; ox < size.width; ++ox)
          for (std::size_t i = 0; i < form.shape.kernel.height; ++i)
            for (std::size_t j = 0; j < form.shape.kernel.width; ++j)
              for (std::size_t c = 0; c < form.channels; ++c) {
                const std::size_t iy = oy * form.shape.stride.height + i - form.shape.padding.height;
                const std::size_t ix = ox * form.shape.stride.width + j - form.shape.padding.width;
                if (iy >= form.image.height || ix >= form.image.width) continue;  // or wrapped around
                function(((n * size.height + oy) * size.width + ox) * form.channels + c,
                         ((n * form.image.height + iy) * form.image.width + ix) * form.channels + c);
              }
  }

  Form form;
  HeightWidth size;
  std::vector<T> x, dy, y, dx;
  std::vector<std::uint8_t> places;
  Stream stream = immediate_stream();
};

TEST_CASE_TEMPLATE("max_pool_takes_the_largest_and_its_gradient_goes_there", T, TESSERA_ALL_ELEMENTS) {
  for (const Form& form : forms()) {
    Pool<T> pool(form);
    pool.max_forward();
    pool.max_backward();
    const auto x = widened(pool.x), dy = widened(pool.dy);
    std::vector<double> y(pool.y.size(), -1e30), dx(x.size(), 0.0);
    std::vector<std::size_t> from(y.size());
    pool.for_each_seen([&](std::size_t to, std::size_t at) {
      if (x[at] > y[to]) y[to] = x[at], from[to] = at;
    });
    for (std::size_t i = 0; i < y.size(); ++i) dx[from[i]] += dy[i];
    CHECK(widened(pool.y) == y);
    check_elements(pool.dx, dx);
  }
}

TEST_CASE("max_pool_takes_the_first_of_equals_and_never_hides_nan") {
  Pool<float> pool({{.kernel = 2}, 1, {2, 6}, 1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  pool.x = {3, 3, 1, nan, -1, -2, 3, 3, 7, 2, nan, -3};
  pool.max_forward();
  CHECK(pool.y[0] == 3.0f);
  CHECK(std::isnan(pool.y[1]));
  CHECK(std::isnan(pool.y[2]));
  CHECK(pool.places == std::vector<std::uint8_t>{0, 1, 2});
}

TEST_CASE_TEMPLATE("average_pool_and_its_gradient_are_the_formula", T, TESSERA_ALL_ELEMENTS) {
  for (const Form& form : forms()) {
    Pool<T> pool(form);
    pool.average_forward();
    pool.average_backward();
    const auto x = widened(pool.x), dy = widened(pool.dy);
    std::vector<double> y(pool.y.size(), 0.0), dx(x.size(), 0.0);
    const auto share = 1.0 / static_cast<double>(form.shape.kernel.height * form.shape.kernel.width);
    pool.for_each_seen([&](std::size_t to, std::size_t at) {
      y[to] += share * x[at];
      dx[at] += share * dy[to];
    });
    check_elements(pool.y, y);
    check_elements(pool.dx, dx);
  }
}

TEST_CASE("pooling_gradients_are_those_of_central_differences") {
  Pool<double> pool({{.kernel = 3, .stride = 2, .padding = 1}, 2, {5, 4}, 3});
  const auto largest = [&] {
    pool.max_forward();
    return dot(pool.y, pool.dy);
  };
  std::vector<double> expected = numeric_gradient(pool.x, largest);
  pool.max_forward(), pool.max_backward();
  check_elements(pool.dx, expected, 1e-6);
  expected = numeric_gradient(pool.x, [&] {
    pool.average_forward();
    return dot(pool.y, pool.dy);
  });
  pool.average_backward();
  check_elements(pool.dx, expected, 1e-6);
}

TEST_CASE_TEMPLATE("global_average_is_the_mean_over_the_pixels", T, TESSERA_ALL_ELEMENTS) {
  Stream stream = immediate_stream();
  for (const std::size_t images : {std::size_t{0}, std::size_t{3}}) {
    std::vector<T> x = random_elements<T>(images * 35 * 6, 1), dy = random_elements<T>(images * 6, 2);
    std::vector<T> y = unset<T>(dy.size()), dx = unset<T>(x.size());
    global_average_forward<T>(stream, {x.data(), images, 5, 7, 6}, matrix(y, images, 6));
    global_average_backward<T>(stream, matrix(std::as_const(dy), images, 6), {dx.data(), images, 5, 7, 6});
    std::vector<double> expected_y(y.size(), 0.0), expected_dx(x.size());
    const auto wide_x = widened(x), wide_dy = widened(dy);
    for (std::size_t i = 0; i < x.size(); ++i) {
      expected_y[i / 210 * 6 + i % 6] += wide_x[i] / 35.0;
      expected_dx[i] = wide_dy[i / 210 * 6 + i % 6] / 35.0;
    }
    check_elements(y, expected_y);
    check_elements(dx, expected_dx);
  }
}

TEST_CASE_TEMPLATE("pooling_has_the_same_bits_in_every_instruction_set_and_on_any_number_of_threads", T,
                   TESSERA_ALL_ELEMENTS) {
  const auto bits = [] {
    Pool<T> pool({{.kernel = 3, .stride = 2, .padding = 1}, 5, {33, 31}, 70});
    pool.max_forward(), pool.max_backward();
    std::string result = bytes_of(pool.y, pool.dx);
    pool.average_forward(), pool.average_backward();
    return result + bytes_of(pool.y, pool.dx);
  };
  check_same_bits(bits);
  check_same_bits_on_threads(bits);
}

TEST_CASE("pooling_refuses_what_does_not_fit") {
  using doctest::Contains;
  CHECK_THROWS_WITH_AS((PoolShape{.kernel = 3, .padding = 2}.output(9)), Contains("at most half of the kernel"),
                       UsageError);
  CHECK_THROWS_WITH_AS((PoolShape{.kernel = 5}.output({9, 4})), Contains("4 pixels, padded by 0, are fewer"),
                       UsageError);
  CHECK_THROWS_AS((PoolShape{.kernel = 2, .stride = 0}.output(9)), UsageError);
  Pool<float> pool(forms().front());
  const ImageView<float> wrong{pool.y.data(), 2, 3, 2, 3};
  CHECK_THROWS_WITH_AS(average_pool_forward<float>(pool.stream, pool.form.shape, pool.in<const float>(pool.x), wrong),
                       Contains("become as many of 2 x 3, but 2 of 3 x 2"), UsageError);
  std::vector<float> large(17 * 17), one(1);
  CHECK_THROWS_WITH_AS(max_pool_forward<float>(pool.stream, {.kernel = 17}, {large.data(), 1, 17, 17, 1},
                                               {one.data(), 1, 1, 1, 1}, pool.places.data()),
                       Contains("a kernel of 17 x 17 has more than 256 pixels"), UsageError);
}

}  // namespace pooling_test
