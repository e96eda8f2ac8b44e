// train_gpt's writing: the choice of bytes follows the model's probabilities, and a terminal gets valid text only.
#include "trainer/gpt/text.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

using namespace train_gpt;

TEST_CASE("tokens_are_chosen_as_often_as_they_are_likely") {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), -1000.0f, std::log(5.0f)};
  std::vector<std::size_t> times(4, 0);
  for (std::uint32_t i = 0; i < 8000; ++i) {
    ++times[static_cast<std::size_t>(choose_token(logits, 1.0, uniform_number(1, 2, i)))];
  }
  // 1000, 2000 and 5000 expected; five deviations.
  CHECK(times[0] == doctest::Approx(1000).epsilon(0.15));
  CHECK(times[1] == doctest::Approx(2000).epsilon(0.1));
  CHECK(times[2] == 0);
  CHECK(times[3] == doctest::Approx(5000).epsilon(0.05));
}

TEST_CASE("temperature_sharpens_and_zero_takes_the_likeliest") {
  const std::vector<float> logits = {0.0f, 3.0f, 3.0f, 1.0f};
  for (const double uniform : {0.0, 0.5, 0.999999}) CHECK(choose_token(logits, 0.0, uniform) == 1);
  CHECK(choose_token(logits, 0.01, 0.25) == 1);
  CHECK(choose_token(logits, 0.01, 0.75) == 2);
  CHECK(choose_token(logits, 100.0, 0.0) == 0);
  CHECK(choose_token(logits, 100.0, 0.999999) == 3);
}

TEST_CASE("uniform_numbers_depend_on_every_argument") {
  const double number = uniform_number(1, 2, 3);
  CHECK(number >= 0.0);
  CHECK(number < 1.0);
  CHECK(uniform_number(1, 2, 3) == number);
  CHECK(uniform_number(2, 2, 3) != number);
  CHECK(uniform_number(1, 3, 3) != number);
  CHECK(uniform_number(1, 2, 4) != number);
}

TEST_CASE("text_keeps_utf8_and_nothing_that_upsets_a_terminal") {
  const auto shown = [](const std::string& bytes) { return printable(tokens_of(bytes)); };
  CHECK(shown("To be,\nor not") == "To be,\nor not");
  CHECK(shown("é – 𝄞") == "é – 𝄞");
  CHECK(shown("\x1b[2J") == "�[2J");
  CHECK(shown("\x7f\r\t") == "���");
  CHECK(shown("\xff\xfe") == "��");
  CHECK(shown("a\xc3") == "a�");                    // cut off
  CHECK(shown("\xc3(") == "�(");                    // not continued
  CHECK(shown("\xc0\xaf\xe0\x80\xaf") == "�����");  // overlong
  CHECK(shown("\xc2\x9b") == "��");                 // a control character in two bytes
  CHECK(shown("").empty());
}

TEST_CASE("every_line_gets_its_margin") {
  CHECK(indented("a\nb", "> ") == "> a\n> b");
  CHECK(indented("", "> ") == "> ");
  CHECK(indented("\n", "> ") == "> \n> ");
}
