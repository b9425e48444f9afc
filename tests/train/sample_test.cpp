#include "train/model/sample.h"

#include <gtest/gtest.h>

namespace stepc::train {
namespace {

TEST(Sample, PrintableTextCannotHarmATerminal) {
  EXPECT_EQ(printable("caf\xC3\xA9\n\t."), "caf\xC3\xA9\n\t.");
  EXPECT_EQ(printable("a\xFF\x1B[2J"), "a\xEF\xBF\xBD\xEF\xBF\xBD[2J");
  EXPECT_EQ(printable("\xC2\x9B"
                      "x\x7F\xE2\x82"),
            "\xEF\xBF\xBDx\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace stepc::train
