<?php
$fallback = false;
$namespaceNames = [
	NS_MAIN             => '',
	NS_FILE             => 'File',
	NS_FILE_TALK        => 'File_talk',
];
$magicWords = [
	'hiddencat' => [ 1, '__HIDDENCAT__' ],
	'redirect'  => [ 0, '#REDIRECT' ],
	'toc'       => [ 0, '__TOC__' ],
];
