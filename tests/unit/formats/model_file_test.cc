#include "formats/model_file.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/gguf_builder.h"
#include "support/temp_folder.h"

namespace spindle::formats {
namespace {

using test::GgufBuilder;
using test::TempFolder;
using testing::HasSubstr;

GgufBuilder Part(uint32_t number, uint32_t count) {
  GgufBuilder builder;
  builder.Text("general.architecture", "llama").Uint("split.no", number).Uint("split.count", count);
  return builder;
}

std::string Safetensors(const std::string& name) {
  const std::string header =
      R"({")" + name + R"(": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  return file + header + std::string(4, '\0');
}

void ExpectRefused(const std::string& path, absl::StatusCode code, const std::string& message) {
  const auto file = ModelFile::Open(path);
  EXPECT_EQ(file.status().code(), code) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(message));
}

TEST(ModelFile, OpensAGgufFileAndConvertsMetadata) {
  const TempFolder folder;
  std::vector<uint8_t> minus_one;
  GgufBuilder::Put<int32_t>(&minus_one, -1);
  GgufBuilder builder;
  builder.Uint("count", 7).Float("eps", 0.5F).Float("two", 2.0F).Text("name", "n");
  builder.Entry("negative", 5, minus_one).Tensor("t", {8, 2});
  const auto file = ModelFile::Open(folder.Write("m.gguf", builder.Build()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->kind(), FileKind::kGguf);
  EXPECT_EQ((*file)->MetaUint("count"), 7U);
  EXPECT_EQ((*file)->MetaUint("two"), 2U);
  EXPECT_EQ((*file)->MetaUint("eps"), std::nullopt);  // not exact
  EXPECT_EQ((*file)->MetaUint("negative"), std::nullopt);
  EXPECT_EQ((*file)->MetaFloat("negative"), -1.0);
  EXPECT_EQ((*file)->MetaFloat("count"), 7.0);
  EXPECT_EQ((*file)->MetaString("name"), "n");
  EXPECT_EQ((*file)->MetaString("count"), std::nullopt);
  ASSERT_NE((*file)->Find("t"), nullptr);
  EXPECT_EQ((*file)->Find("u"), nullptr);
  (*file)->DropCache(*(*file)->Find("t"));
  EXPECT_EQ(*reinterpret_cast<const float*>((*file)->Find("t")->bytes.data()), 1.0F);
}

TEST(ModelFile, JoinsTheThreePartsOfASplitFromAnyOfThem) {
  const TempFolder folder;
  folder.Write("m-00001-of-00003.gguf",
               Part(0, 3).Uint("split.tensors.count", 3).Tensor("a", {4}).Build());
  const std::string second =
      folder.Write("m-00002-of-00003.gguf", Part(1, 3).Tensor("b", {4}).Build());
  folder.Write("m-00003-of-00003.gguf", Part(2, 3).Tensor("c", {4}).Build());
  for (const std::string& path : {second, folder.path()}) {
    const auto file = ModelFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->tensors().size(), 3U);
    EXPECT_EQ((*file)->paths().size(), 3U);
    EXPECT_NE((*file)->Find("c"), nullptr);
  }
}

TEST(ModelFile, RefusesIncompleteOrContradictorySplits) {
  const TempFolder missing;
  ExpectRefused(missing.Write("m-00001-of-00002.gguf", Part(0, 2).Tensor("a", {4}).Build()),
                absl::StatusCode::kNotFound,
                "m-00002-of-00002.gguf");
  const TempFolder renamed;
  ExpectRefused(renamed.Write("m.gguf", Part(0, 2).Tensor("a", {4}).Build()),
                absl::StatusCode::kDataLoss,
                "split.count is 2");
  const TempFolder twice;
  twice.Write("m-00001-of-00002.gguf", Part(0, 2).Tensor("a", {4}).Build());
  ExpectRefused(twice.Write("m-00002-of-00002.gguf", Part(1, 2).Tensor("a", {4}).Build()),
                absl::StatusCode::kDataLoss,
                "'a' is also in another file");
  const TempFolder swapped;
  ExpectRefused(swapped.Write("m-00001-of-00002.gguf", Part(1, 2).Tensor("a", {4}).Build()),
                absl::StatusCode::kDataLoss,
                "split.no");
  const TempFolder fewer;
  fewer.Write("m-00001-of-00002.gguf",
              Part(0, 2).Uint("split.tensors.count", 9).Tensor("a", {4}).Build());
  ExpectRefused(fewer.Write("m-00002-of-00002.gguf", Part(1, 2).Tensor("b", {4}).Build()),
                absl::StatusCode::kDataLoss,
                "split.tensors.count is 9");
  const TempFolder zero;
  ExpectRefused(zero.Write("m-00001-of-00000.gguf", Part(0, 0).Tensor("a", {4}).Build()),
                absl::StatusCode::kDataLoss,
                "0 parts");
}

TEST(ModelFile, RefusesFoldersWithoutOneClearModel) {
  const TempFolder folder;
  ExpectRefused(folder.path(), absl::StatusCode::kNotFound, "config.json");
  ExpectRefused(folder.path() + "/none.gguf", absl::StatusCode::kNotFound, "none.gguf");
  folder.Write("a.gguf", Part(0, 1).Build());
  folder.Write("b.gguf", Part(0, 1).Build());
  ExpectRefused(folder.path(), absl::StatusCode::kInvalidArgument, "several GGUF models");
}

TEST(ModelFile, OpensAShardedHuggingFaceFolder) {
  const TempFolder folder;
  folder.Write("config.json", "{}");
  folder.Write("model-00001-of-00002.safetensors", Safetensors("a"));
  const std::string second = folder.Write("model-00002-of-00002.safetensors", Safetensors("b"));
  ExpectRefused(folder.path(), absl::StatusCode::kInvalidArgument, "index.json");
  folder.Write("model.safetensors.index.json",
               R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                                  "b": "model-00002-of-00002.safetensors"}})");
  for (const std::string& path : {folder.path(), second}) {
    const auto file = ModelFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->kind(), FileKind::kHuggingFace);
    EXPECT_EQ((*file)->tensors().size(), 2U);
    EXPECT_EQ((*file)->SideFile("config.json"), "{}");
    EXPECT_EQ((*file)->SideFile("tokenizer.json"), std::nullopt);
    EXPECT_EQ((*file)->SideFile("../config.json"), std::nullopt);
  }
}

TEST(ModelFile, RefusesDamagedIndexes) {
  const auto expect =
      [](const std::string& index, absl::StatusCode code, const std::string& message) {
        const TempFolder folder;
        folder.Write("config.json", "{}");
        folder.Write("x.safetensors", Safetensors("a"));
        folder.Write("model.safetensors.index.json", index);
        ExpectRefused(folder.path(), code, message);
      };
  expect("[", absl::StatusCode::kDataLoss, "no weight_map");
  expect(R"({"weight_map": {}})", absl::StatusCode::kDataLoss, "empty weight_map");
  expect(R"({"weight_map": {"a": "../x.safetensors"}})", absl::StatusCode::kDataLoss, "'a'");
  expect(R"({"weight_map": {"a": 3}})", absl::StatusCode::kDataLoss, "'a'");
  expect(R"({"weight_map": {"b": "x.safetensors"}})", absl::StatusCode::kDataLoss, "'b'");
  expect(R"({"weight_map": {"a": "y.safetensors"}})", absl::StatusCode::kNotFound, "y.safetensors");
}

}  // namespace
}  // namespace spindle::formats
