// Lists of ids over shared links.
#include "kv/sim/id_list.h"

#include <vector>

#include <gtest/gtest.h>

namespace spindle::kv::sim {
namespace {

std::vector<uint32_t> Drain(IdList& list) {
  std::vector<uint32_t> ids;
  while (list.size() > 0) {
    ids.push_back(list.PopOldest());
  }
  return ids;
}

TEST(IdListTest, OldestFirstWhateverIsTakenFromTheMiddle) {
  IdLinks links(8);
  IdList list(links);
  for (const uint32_t id : {3U, 1U, 4U, 0U, 5U}) {
    list.Append(id);
  }
  list.Remove(4);
  list.Remove(5);
  list.Remove(3);
  EXPECT_EQ(list.oldest(), 1U);
  EXPECT_EQ(list.After(1), 0U);
  EXPECT_EQ(list.After(0), kNoId);
  list.Append(3);
  EXPECT_EQ(Drain(list), (std::vector<uint32_t>{1, 0, 3}));
  EXPECT_EQ(list.oldest(), kNoId);
}

TEST(IdListTest, AppendAllKeepsBothOrders) {
  IdLinks links(8);
  IdList older(links);
  IdList younger(links);
  older.AppendAll(younger);  // both empty
  EXPECT_EQ(older.size(), 0U);
  younger.Append(2);
  younger.Append(6);
  older.AppendAll(younger);  // into an empty one
  EXPECT_EQ(younger.size(), 0U);
  EXPECT_EQ(younger.oldest(), kNoId);
  younger.Append(1);
  younger.Append(7);
  older.AppendAll(younger);
  older.Append(0);
  EXPECT_EQ(Drain(older), (std::vector<uint32_t>{2, 6, 1, 7, 0}));
}

}  // namespace
}  // namespace spindle::kv::sim
