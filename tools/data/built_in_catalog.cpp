// The data sets that `lockstep data fetch` knows. Each file's address, size and checksum are those of the public file that
// `source` names; they were copied from there.
#include "tools/data/catalog.h"

namespace lockstep::tools {

// clang-format off
const char* const built_in_catalog = R"json({
  "cifar10": {"about": "60,000 pictures of 32x32 in 10 classes, binary files", "files": [
    {"url": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "bytes": 170052171, "sha256": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", "source": "https://github.com/tensorflow/datasets/blob/333639b37af6c6fedf3610a4a2d42f1c6ef6f7d5/tensorflow_datasets/url_checksums/cifar10.txt"}]},
  "cifar100": {"about": "60,000 pictures of 32x32 in 100 classes, binary files", "files": [
    {"url": "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "bytes": 168513733, "sha256": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", "source": "https://github.com/tensorflow/datasets/blob/333639b37af6c6fedf3610a4a2d42f1c6ef6f7d5/tensorflow_datasets/url_checksums/cifar100.txt"}]},
  "mnist": {"about": "70,000 digits of 28x28, IDX files", "files": [
    {"url": "https://storage.googleapis.com/cvdf-datasets/mnist/train-images-idx3-ubyte.gz", "bytes": 9912422, "sha256": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", "source": "https://github.com/tensorflow/datasets/blob/31f1255e57e519a6c004f0b097a2f5cfcf0dde7d/tensorflow_datasets/url_checksums/mnist.txt"},
    {"url": "https://storage.googleapis.com/cvdf-datasets/mnist/train-labels-idx1-ubyte.gz", "bytes": 28881, "sha256": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", "source": "https://github.com/tensorflow/datasets/blob/31f1255e57e519a6c004f0b097a2f5cfcf0dde7d/tensorflow_datasets/url_checksums/mnist.txt"},
    {"url": "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-images-idx3-ubyte.gz", "bytes": 1648877, "sha256": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", "source": "https://github.com/tensorflow/datasets/blob/31f1255e57e519a6c004f0b097a2f5cfcf0dde7d/tensorflow_datasets/url_checksums/mnist.txt"},
    {"url": "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz", "bytes": 4542, "sha256": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", "source": "https://github.com/tensorflow/datasets/blob/31f1255e57e519a6c004f0b097a2f5cfcf0dde7d/tensorflow_datasets/url_checksums/mnist.txt"}]},
  "multinli": {"about": "433,000 pairs of sentences, JSON lines (sentence1, sentence2, gold_label) and TSV", "files": [
    {"url": "https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip", "bytes": 226850426, "sha256": "049f507b9e36b1fcb756cfd5aeb3b7a0cfcb84bf023793652987f7e7e0957822", "source": "https://github.com/tensorflow/datasets/blob/887b9274d7d9a94a2b5ec06bbec8d70a150bd5f7/tensorflow_datasets/url_checksums/multi_nli.txt"}]},
  "opus_books": {"about": "Sentences of books in two languages, aligned line by line", "default_part": "en-it",
    "source": "https://github.com/huggingface/datasets/blob/040102f100964a33fd334e2695f1c493fa6b92db/datasets/opus_books/dataset_infos.json",
    "address": "https://object.pouta.csc.fi/OPUS-Books/v1/moses/", "parts": {
    "ca-de": [{"url": "ca-de.txt.zip", "bytes": 349126, "sha256": "da803eb6960d41047470625695cb0f2e8676c172ccd2ed2ab285c0d666a1f80a"}],
    "ca-en": [{"url": "ca-en.txt.zip", "bytes": 336276, "sha256": "77fe975b061c00f6cc9c0306d5c79bd92c91f6f2e0fc7dd3e64e785c4a73c9fa"}],
    "ca-hu": [{"url": "ca-hu.txt.zip", "bytes": 346425, "sha256": "a36bd2ffa5cd0a11a16581234f2d5ecde8b50825d56879e44eba861f72af417b"}],
    "ca-nl": [{"url": "ca-nl.txt.zip", "bytes": 340308, "sha256": "487472fb613b282c4ae4d46562a44b7e508270228ca1bf5b914593e56135b29d"}],
    "de-en": [{"url": "de-en.txt.zip", "bytes": 5124458, "sha256": "556f5f2d9a954ee84bfd617e7648ed526312233d55b7bfd4d99cb3adbb5c75a3"}],
    "de-eo": [{"url": "de-eo.txt.zip", "bytes": 150822, "sha256": "3dc4c23071918d8d7e7e2cd9fc7e2ab1b20ef1cf765e47de148a97fc6402873b"}],
    "de-es": [{"url": "de-es.txt.zip", "bytes": 2802010, "sha256": "7f9c4bc3fc2741682d2f9686ca3440f352723544d6704332938f7ff5e4c620ec"}],
    "de-fr": [{"url": "de-fr.txt.zip", "bytes": 3556168, "sha256": "60dc6ed1a04639023aca60a2f3236f6e3d1befff705918f3f51c4d887a225464"}],
    "de-hu": [{"url": "de-hu.txt.zip", "bytes": 5069455, "sha256": "d81344f94ed63afc9f8242d74eefe6b07f82bf1256e07e159f9b4f152b5717cc"}],
    "de-it": [{"url": "de-it.txt.zip", "bytes": 2811066, "sha256": "c579e12574d10e3d8755d15dfa2ce565f70f7894e9d85e17ab0e43a5f0d634e1"}],
    "de-nl": [{"url": "de-nl.txt.zip", "bytes": 1325189, "sha256": "97f9440f79a16cd07a037fcd883305e68abcec79f72aa0df4f9a0f82d31b1d36"}],
    "de-pt": [{"url": "de-pt.txt.zip", "bytes": 116319, "sha256": "c190ec6d700c30fc3d4f61fb4002167a8332ef67b80df95e47e77229e8b1cf8a"}],
    "de-ru": [{"url": "de-ru.txt.zip", "bytes": 1799371, "sha256": "41b7be6f6d260ab0f15c6df20d4df580a812fa75b251056f642c713c4cbf7768"}],
    "el-en": [{"url": "el-en.txt.zip", "bytes": 175537, "sha256": "47f726870be58bf12374a70d0cc2b7c0d437961c3c81aa597d32c3ecdfd36de2"}],
    "el-es": [{"url": "el-es.txt.zip", "bytes": 168306, "sha256": "07a3af12ffc9c32ce389aae5599677d568cfb184ae607821c4206fe3ce74c968"}],
    "el-fr": [{"url": "el-fr.txt.zip", "bytes": 169241, "sha256": "36e6b6ecb80a48766fadf2810472dd521221f1405da921e198636bbacf32e4e4"}],
    "el-hu": [{"url": "el-hu.txt.zip", "bytes": 176715, "sha256": "6fd418791036953814899f280c2dc42fdc537f2f8e7ad6a28911bb8caf7e9e12"}],
    "en-eo": [{"url": "en-eo.txt.zip", "bytes": 145339, "sha256": "5482434463ffe11e1787f5d82c39a8cdb653837a751730bce27a355be9ed15ec"}],
    "en-es": [{"url": "en-es.txt.zip", "bytes": 9257150, "sha256": "81917fa2df54b0472434d9eae7d1dc54556d5d0bf6ea265ac5a9edb30e7acfc2"}],
    "en-fi": [{"url": "en-fi.txt.zip", "bytes": 266714, "sha256": "bde0cf43bd9f1bc13a5d4f1ff1eb9119e621d629936660f40f83fd3db171a84b"}],
    "en-fr": [{"url": "en-fr.txt.zip", "bytes": 12009501, "sha256": "3b9eade0b11d6cc280502cbe52908ec476d9faa3bb589e70cf3ee1e44fcfc473"}],
    "en-hu": [{"url": "en-hu.txt.zip", "bytes": 13232578, "sha256": "39698aae7a802b9e45ddf39782bd9a29e7409502c2875c5b566c65b525b10ee6"}],
    "en-it": [{"url": "en-it.txt.zip", "bytes": 3295251, "sha256": "0952a213f2353a3bca2dc0f2e7e8c0ce4ca3b3b62b9ae8a1e6d6d16d95a73531"}],
    "en-nl": [{"url": "en-nl.txt.zip", "bytes": 3727995, "sha256": "91e1551a04bdb992c9063e76d4d42f052b4dd385f84a88b2dd68be84ab86e3dd"}],
    "en-no": [{"url": "en-no.txt.zip", "bytes": 246977, "sha256": "6b1e06d342dd9b68670e5f37a8407d9295b2ec05936c48135151e63900e90a55"}],
    "en-pl": [{"url": "en-pl.txt.zip", "bytes": 226855, "sha256": "d65ebb3e9114ce70f51a7449691ede3fc7afc91d7accdd40bda2e6f0b5b03e40"}],
    "en-pt": [{"url": "en-pt.txt.zip", "bytes": 111837, "sha256": "66c1e44ddedb3ac10bb0478c652084b3c2c4ca3ad3c099de510578043de3e076"}],
    "en-ru": [{"url": "en-ru.txt.zip", "bytes": 1613419, "sha256": "c7ace000e2518da38bd92492165bfd1595fc2b3dc38a28077e52ce82973ee267"}],
    "en-sv": [{"url": "en-sv.txt.zip", "bytes": 304975, "sha256": "27159d593a481295bd11cb6131c9fe8a4c6e8fbe0761318757a0c208aee363a5"}],
    "eo-es": [{"url": "eo-es.txt.zip", "bytes": 154950, "sha256": "efbf8b152a40f4475f05a10f726f8b22b8d7e875e6168fe8cb91f8a9285c4894"}],
    "eo-fr": [{"url": "eo-fr.txt.zip", "bytes": 152040, "sha256": "2b32e3ad4e221078d57bd55ded3d1765ffc15403693c9e6f8d2ba31a2e1a0c55"}],
    "eo-hu": [{"url": "eo-hu.txt.zip", "bytes": 151332, "sha256": "6d4bf1fff047be0beb05d8ad04c0df1b482053f9f5d16f22ab31109b32eb46e1"}],
    "eo-it": [{"url": "eo-it.txt.zip", "bytes": 146899, "sha256": "95aae3557a24ca5f5f2d738d1d167a74a4da63d972999d8ca430002cc3bf08f3"}],
    "eo-pt": [{"url": "eo-pt.txt.zip", "bytes": 116157, "sha256": "04d375e525b50b9ced8328d365bc5cb47537f8283c3edeba1ec0ea88e1fe35b5"}],
    "es-fi": [{"url": "es-fi.txt.zip", "bytes": 264316, "sha256": "cd08f8ef9e3d8aaf16c3501b5c87c4e0890114e3e19994b8686f5f6e2fcbed41"}],
    "es-fr": [{"url": "es-fr.txt.zip", "bytes": 5203099, "sha256": "51c3c98290a35043e85b4be83f7f0c7c0800872b1dbffcb314869dac49da8eb1"}],
    "es-it": [{"url": "es-it.txt.zip", "bytes": 2864028, "sha256": "fbd2f3ccbf37c72acc88f4409524764ca18a1cba4b2db0876d8dae568b47d9b3"}],
    "es-nl": [{"url": "es-nl.txt.zip", "bytes": 3245558, "sha256": "ace44d8366b7cc07bc259341b834b48c99c87e73dc96bc1f06351bc9724025ff"}],
    "es-no": [{"url": "es-no.txt.zip", "bytes": 270796, "sha256": "4ff2f53a01dfa6f93f9c7ef7038c75f026344520c0c3e5b87b1a4e481d84c05a"}],
    "es-pt": [{"url": "es-pt.txt.zip", "bytes": 120549, "sha256": "e27098934c7df2e0c08b02a990372ee08b91f910efca06fa44957f67e1b4fbe5"}],
    "es-ru": [{"url": "es-ru.txt.zip", "bytes": 1648606, "sha256": "e0ae4efce66a16dcf784af4dcac1a87b773101cec3234502bb040e22d2f29859"}],
    "fi-fr": [{"url": "fi-fr.txt.zip", "bytes": 276633, "sha256": "dfe53b1c0118c41e26c5c66e9122f4db0bc201518e18fa7494c2089ec7120e48"}],
    "fi-no": [{"url": "fi-no.txt.zip", "bytes": 256267, "sha256": "3c260b62bb374d91ed78ac2a9b6403fe38c5316894de27f6f84280520da06d7b"}],
    "fi-pl": [{"url": "fi-pl.txt.zip", "bytes": 236123, "sha256": "f06f57294b7d9b52380f60936c052070d083ca9e6cb18407c82ce380245f2d4b"}],
    "fr-hu": [{"url": "fr-hu.txt.zip", "bytes": 8328639, "sha256": "85a13ab952f4086f0227548a25e4502ffa834ead9beca2c03719bd56bea6ff45"}],
    "fr-it": [{"url": "fr-it.txt.zip", "bytes": 1737670, "sha256": "960f69294110f9ea508b84d8e3c3b84e32fb37af0df11379277adceee5881886"}],
    "fr-nl": [{"url": "fr-nl.txt.zip", "bytes": 3720151, "sha256": "3e167588d7213107f2e4396087dae3baad93719d246e9dda40116922107a4fac"}],
    "fr-no": [{"url": "fr-no.txt.zip", "bytes": 256501, "sha256": "74e55cf61c749507e9d60eb54b01859bc92dff6bf90abb2a23e0e6d26b77234b"}],
    "fr-pl": [{"url": "fr-pl.txt.zip", "bytes": 235905, "sha256": "a5bae822e60cf8fa60ed39f4b6cb317c086710b33b64e6e4de02f08a93166816"}],
    "fr-pt": [{"url": "fr-pt.txt.zip", "bytes": 115920, "sha256": "b0d81ef16d434ab48e974bcd689fbbd51e7db14909e6c2ef8364b218e7a291f4"}],
    "fr-ru": [{"url": "fr-ru.txt.zip", "bytes": 790541, "sha256": "90e9ad0b96790fd29b0bb7c20036d22d476092c6d24579c005d86308cc3b9b00"}],
    "fr-sv": [{"url": "fr-sv.txt.zip", "bytes": 321660, "sha256": "2a9d6fcff3eecbe54c4addb0455cf0a5a1c19a083a9ee413fb543f2167b30694"}],
    "hu-it": [{"url": "hu-it.txt.zip", "bytes": 3101681, "sha256": "f951546033a0f1f195b96b207943abc12d6551c4ae16c49ea200a6e4299ce8cf"}],
    "hu-nl": [{"url": "hu-nl.txt.zip", "bytes": 3998988, "sha256": "fb6b4de552aa9621aaf14694dbd71a225b20e00dfa3100aa416d7bc3187e0db6"}],
    "hu-no": [{"url": "hu-no.txt.zip", "bytes": 267047, "sha256": "565823d21b1d8b4e7e584d8ca450ac1b056296f4e4d13c6afd713204cc4b19ee"}],
    "hu-pl": [{"url": "hu-pl.txt.zip", "bytes": 245670, "sha256": "7c13fd2b6e939f2de1a0034e666de5ec1c816539e677c2a4a225033da3baaad0"}],
    "hu-pt": [{"url": "hu-pt.txt.zip", "bytes": 115002, "sha256": "ff9f60b6648c3173ec560bc896c8a5e6b88689f2cf30139f7decead0527c00dc"}],
    "hu-ru": [{"url": "hu-ru.txt.zip", "bytes": 2469765, "sha256": "7a6ad2df2ef3b72b4738546537990f2129a2f4660ce3072ce8f5c70699012156"}],
    "it-nl": [{"url": "it-nl.txt.zip", "bytes": 476875, "sha256": "956683fca4053e31191768e18ecaa3e9539b065a990151c9c2b8817e477ce9e6"}],
    "it-pt": [{"url": "it-pt.txt.zip", "bytes": 111050, "sha256": "6261f21b3b0267a3cd6f606a03c9628067f9b2ec4a7a12c0da6baf1a579569cd"}],
    "it-ru": [{"url": "it-ru.txt.zip", "bytes": 1620478, "sha256": "2d6dbfa1f8c68d230f6b1e373bbb08809e73a36d4a8d9543412e59221a6fafe2"}],
    "it-sv": [{"url": "it-sv.txt.zip", "bytes": 307821, "sha256": "86d12b740456c3ff8a6cbf15f6b445b23402f4b2c684bd3d67b0f058329dde5b"}]}}
})json";
// clang-format on

}  // namespace lockstep::tools
